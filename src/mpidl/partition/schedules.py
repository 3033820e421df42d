"""The order in which a stage of a pipeline computes the micro-batches of a minibatch.

A schedule yields instructions for one stage. A stage receives what an instruction needs before it, and begins to send
what other stages need after it: the values of `Forward` to later stages, the gradients of `Backward` or
`BackwardInputs` to earlier ones. Micro-batches and stages are numbered from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar, Literal, NamedTuple

from msgspec import Struct

from mpidl.errors import UsageError
from mpidl.parameters.ranges import Range, split
from mpidl.schema import choose

#: The gradients that a backward pass computes: of the stage's inputs, of its parameters ("weights"), or both.
BackwardPart = Literal["both", "inputs", "weights"]


class Instruction(Struct, frozen=True):
    """What a stage does with a micro-batch; `part` is the part of the backward pass, if it is one."""

    part: ClassVar[BackwardPart | None] = None
    micro_batch: int


class Forward(Instruction, frozen=True):
    """Compute the stage's values, and keep what the backward pass needs."""


class Backward(Instruction, frozen=True):
    """Compute all gradients of a micro-batch."""

    part: ClassVar[BackwardPart | None] = "both"


class BackwardInputs(Instruction, frozen=True):
    """Compute the gradients with respect to the stage's inputs: B in Qi et al. 2024."""

    part: ClassVar[BackwardPart | None] = "inputs"


class BackwardWeights(Instruction, frozen=True):
    """Compute the gradients with respect to its parameters, after `BackwardInputs`: W in Qi et al. 2024."""

    part: ClassVar[BackwardPart | None] = "weights"


#: Yields the instructions of a stage for a minibatch, given the stage and the numbers of stages and micro-batches.
PipelineSchedule = Callable[[int, int, int], Iterator[Instruction]]


def slots(instructions: Iterable[Instruction]) -> dict[int, int]:
    """Return for each micro-batch the number of the memory slot that keeps what its backward pass needs.

    A micro-batch occupies it from `Forward` to its last instruction. The number of slots is the peak number of
    micro-batches with stashed activations.

    Examples
    --------
    >>> slots([Forward(0), Forward(1), Backward(0), Forward(2), Backward(1), Backward(2)])
    {0: 0, 1: 1, 2: 0}
    """
    found: dict[int, int] = {}
    free: list[int] = []
    for each in instructions:
        if isinstance(each, Forward):
            found[each.micro_batch] = free.pop(0) if free else len(set(found.values()))
        elif isinstance(each, Backward | BackwardWeights):
            free.append(found[each.micro_batch])
            free.sort()
    return found


def gpipe(stage: int, stages: int, micro_batches: int) -> Iterator[Instruction]:
    """Yield a stage's instructions for a minibatch: Huang et al. 2019, "GPipe", section 2.2 and figure 2c.

    A stage keeps all M micro-batches. K equal stages each idle for (K - 1) / (M + K - 1) of the time.

    Examples
    --------
    >>> list(gpipe(0, 2, 1))
    [Forward(micro_batch=0), Backward(micro_batch=0)]
    """
    for each in range(micro_batches):
        yield Forward(each)
    for each in range(micro_batches):
        yield Backward(each)


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> Iterator[Instruction]:
    """Yield a stage's instructions for a minibatch: PipeDream's order (Narayanan et al. 2019), followed by a flush.

    A stage keeps at most K - stage of M micro-batches. It idles as long as with GPipe.
    """
    ahead = stages - 1 - stage
    for each in range(micro_batches + ahead):
        if each < micro_batches:
            yield Forward(each)
        if each >= ahead:
            yield Backward(each - ahead)


def zero_bubble(stage: int, stages: int, micro_batches: int) -> Iterator[Instruction]:
    """Yield a stage's instructions for a minibatch: ZB-H1 of Qi et al. 2024, "Zero Bubble Pipeline Parallelism".

    1F1B with the backward pass in two parts: a stage computes the gradients of the weights `stage` micro-batches later,
    where it would idle, so that each keeps at most K micro-batches. K stages that take TF, TB and TW for the parts of a
    micro-batch each idle for (K - 1)(TF + TB - TW), as in table 1 of the paper, if TW is at most TF and TB. A longer TW
    fills no more of the bubble: they idle for (K - 1) max(TF, TB).
    """
    for each in one_forward_one_backward(stage, stages, micro_batches):
        if isinstance(each, Forward):
            yield each
        else:
            yield BackwardInputs(each.micro_batch)
            if each.micro_batch >= stage:
                yield BackwardWeights(each.micro_batch - stage)
    for later in range(max(0, micro_batches - stage), micro_batches):
        yield BackwardWeights(later)


#: The schedules of a minibatch's gradient, by their names in configurations.
SCHEDULES: dict[str, PipelineSchedule] = {
    each.__name__: each for each in (gpipe, one_forward_one_backward, zero_bubble)
}


class MicroBatch(NamedTuple):
    """Some of a minibatch's samples, which pass through a pipeline together.

    Attributes
    ----------
    share : float
        Their share of the minibatch.
    slot : int
        Number of the memory slot that keeps what the backward pass needs.
    first, last : bool
        Whether it is the first, or the last, of the minibatch.
    """

    samples: Range
    share: float
    slot: int
    first: bool
    last: bool


def undivided(samples: int) -> MicroBatch:
    """Return a minibatch as one micro-batch."""
    return MicroBatch(Range(0, samples), 1.0, 0, True, True)


class Pipeline:
    """The instructions of a schedule in `SCHEDULES` for a rank's stage, each with its micro-batch.

    A minibatch has `micro_batches` micro-batches, at most one per sample, whose sizes differ by at most one.
    UsageError if the schedule is unknown, or there are no micro-batches.
    """

    def __init__(self, schedule: str, micro_batches: int, stage: int = 0, stages: int = 1) -> None:
        choose(SCHEDULES, "schedule", schedule)
        if micro_batches < 1:
            raise UsageError(f"micro_batches: {micro_batches}, expected at least 1")
        self._schedule, self.micro_batches = SCHEDULES[schedule], micro_batches
        self._stage, self._stages = stage, stages
        self._orders: dict[int, list[tuple[Instruction, MicroBatch]]] = {}

    def order(self, samples: int) -> list[tuple[Instruction, MicroBatch]]:
        """Return the rank's instructions for a minibatch of this number of samples."""
        if samples not in self._orders:
            parts = split(samples, self._count(samples))
            instructions = self._instructions(len(parts))
            memory = slots(instructions)
            own = [
                MicroBatch(part, part.size / max(1, samples), memory[number], number == 0, number == len(parts) - 1)
                for number, part in enumerate(parts)
            ]
            self._orders[samples] = [(each, own[each.micro_batch]) for each in instructions]
        return self._orders[samples]

    def largest(self, samples: int) -> int:
        """Return the number of samples of a minibatch's largest micro-batch."""
        return -(-samples // self._count(samples))

    def slots(self, samples: int) -> int:
        """Return the maximum number of a minibatch's micro-batches that are kept at once."""
        return len(set(slots(self._instructions(self._count(samples))).values()))

    def _count(self, samples: int) -> int:
        return max(1, min(self.micro_batches, samples))

    def _instructions(self, micro_batches: int) -> list[Instruction]:
        return list(self._schedule(self._stage, self._stages, micro_batches))
