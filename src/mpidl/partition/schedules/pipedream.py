"""PipeDream: 1F1B without a flush, each micro-batch with one version of the weights on its way forward and back."""

from __future__ import annotations

from collections.abc import Iterator

from mpidl.partition.schedules.instructions import Backward, Instruction, Step
from mpidl.partition.schedules.one_forward_one_backward import one_forward_one_backward


def pipedream(stage: int, stages: int, micro_batches: int) -> Iterator[Instruction]:
    """Yield a stage's instructions: Narayanan et al. 2019, "PipeDream", sections 3.2 and 3.3.

    A stage steps after each way back. With the stages counted from 0, micro-batch m goes forward with the weights after
    m - (K - 1 - stage) steps, or with the first ones, and back with the same ("weight stashing").
    """
    for each in one_forward_one_backward(stage, stages, micro_batches):
        if not isinstance(each, Step):
            yield each
        if isinstance(each, Backward):
            yield Step(each.micro_batch)
