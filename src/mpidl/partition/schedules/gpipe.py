"""GPipe: all micro-batches forward, then all back."""

from __future__ import annotations

from collections.abc import Iterator

from mpidl.partition.schedules.instructions import Backward, Forward, Instruction, Step


def gpipe(stage: int, stages: int, micro_batches: int) -> Iterator[Instruction]:
    """Yield a stage's instructions for a minibatch: Huang et al. 2019, "GPipe", section 2.2 and figure 2c.

    A stage keeps all M micro-batches. Of K stages that take equally long, each idles the share (K - 1) / (M + K - 1) of
    the time.

    Examples
    --------
    >>> list(gpipe(0, 2, 1))
    [Forward(micro_batch=0), Backward(micro_batch=0), Step(micro_batch=0)]
    """
    for each in range(micro_batches):
        yield Forward(each)
    for each in range(micro_batches):
        yield Backward(each)
    yield Step(micro_batches - 1)
