"""The order in which a rank computes the micro-batches of a minibatch."""

from __future__ import annotations

from typing import NamedTuple

from mpidl.errors import UsageError
from mpidl.parameters.ranges import Range, split
from mpidl.partition.schedules import SCHEDULES
from mpidl.partition.schedules.instructions import Instruction, slots
from mpidl.schema import choose


class MicroBatch(NamedTuple):
    """Some of a minibatch's samples, which pass through a pipeline together.

    Attributes
    ----------
    samples : Range
        Which samples of the minibatch.
    share : float
        Their share of the minibatch.
    slot : int
        Number of the memory that keeps what the way back needs.
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
    """What a rank does with a minibatch: a schedule's instructions for its stage, each with its micro-batch.

    Parameters
    ----------
    schedule : str
        A name in `SCHEDULES`.
    micro_batches : int
        Into how many micro-batches a minibatch is divided; their sizes differ by at most one. A minibatch of fewer
        samples has one for each sample.
    stage, stages : int
        The rank's stage, and the number of stages.

    Raises
    ------
    UsageError
        If there is no such schedule, or no micro-batch.
    """

    def __init__(self, schedule: str, micro_batches: int, stage: int = 0, stages: int = 1) -> None:
        choose(SCHEDULES, "schedule", schedule)
        if micro_batches < 1:
            raise UsageError(f"micro_batches: {micro_batches}, expected at least 1")
        self._schedule, self.micro_batches = SCHEDULES[schedule], micro_batches
        self._stage, self._stages = stage, stages
        self._orders: dict[int, list[tuple[Instruction, MicroBatch]]] = {}

    def order(self, samples: int) -> list[tuple[Instruction, MicroBatch]]:
        """Return what the rank does with a minibatch of so many samples."""
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
        """Return the samples of the largest micro-batch of such a minibatch."""
        return -(-samples // self._count(samples))

    def slots(self, samples: int) -> int:
        """Return how many micro-batches of such a minibatch are kept at once, at most."""
        return len(set(slots(self._instructions(self._count(samples))).values()))

    def _count(self, samples: int) -> int:
        return max(1, min(self.micro_batches, samples))

    def _instructions(self, micro_batches: int) -> list[Instruction]:
        return list(self._schedule(self._stage, self._stages, micro_batches))
