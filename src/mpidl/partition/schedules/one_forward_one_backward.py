"""1F1B: a stage alternates between the way forward and the way back."""

from __future__ import annotations

from collections.abc import Iterator

from mpidl.partition.schedules.instructions import Backward, Forward, Instruction, Step


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> Iterator[Instruction]:
    """Yield a stage's instructions for a minibatch: PipeDream's order (Narayanan et al. 2019), and then a flush.

    A stage keeps at most K - stage of M micro-batches, stages being counted from 0. It idles as long as with GPipe.
    """
    ahead = min(stages - 1 - stage, micro_batches)
    for each in range(micro_batches + ahead):
        if each < micro_batches:
            yield Forward(each)
        if each >= ahead:
            yield Backward(each - ahead)
    yield Step(micro_batches - 1)
