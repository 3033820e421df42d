"""ZB-H1: the gradients of the weights fill the time in which a stage would idle."""

from __future__ import annotations

from collections.abc import Iterator

from mpidl.partition.schedules.instructions import BackwardInputs, BackwardWeights, Forward, Instruction, Step
from mpidl.partition.schedules.one_forward_one_backward import one_forward_one_backward


def zero_bubble(stage: int, stages: int, micro_batches: int) -> Iterator[Instruction]:
    """Yield a stage's instructions for a minibatch: ZB-H1 of Qi et al. 2024, "Zero Bubble Pipeline Parallelism".

    1F1B with the way back in two parts. The gradients of the weights come later by as many micro-batches as there are
    stages before, so that all stages keep as many micro-batches as 1F1B's first does: at most K. Of K stages
    that take TF, TB and TW for the three parts of a micro-batch, each idles (K - 1)(TF + TB - TW).
    """
    for each in one_forward_one_backward(stage, stages, micro_batches):
        if isinstance(each, Forward):
            yield each
        elif isinstance(each, Step):
            for later in range(max(0, micro_batches - stage), micro_batches):
                yield BackwardWeights(later)
            yield each
        else:
            yield BackwardInputs(each.micro_batch)
            if each.micro_batch >= stage:
                yield BackwardWeights(each.micro_batch - stage)
