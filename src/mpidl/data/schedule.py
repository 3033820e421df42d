"""The order of a run's data, also after a resume: the portion that each ticket stands for. Does no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mpidl.data.portions import Portions


class Assignment(NamedTuple):
    """A part of a portion: its batches [first, last)."""

    portion: int
    first: int
    last: int


class Schedule:
    """Maps tickets, the values of an atomic counter from 0, to portions.

    Parameters
    ----------
    portions : Portions
    epochs : int, optional
    steps : int, optional
        Length of the run in epochs, or in minibatches summed over the replicas; exactly one is given.
    next_portion : int
        First portion that hasn't been taken yet; 0 unless the run is resumed.
    unfinished : sequence of (portion, batches done)
        Portions that were being worked on when the run was stopped; they come first.
    """

    def __init__(
        self,
        portions: Portions,
        epochs: int | None = None,
        steps: int | None = None,
        next_portion: int = 0,
        unfinished: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.portions = portions
        self._next, self._unfinished = next_portion, tuple(unfinished)
        self._given_back: list[Assignment] = []
        self._per_portion = portions.portion // portions.batch
        self.steps_per_epoch = -(-portions.samples // portions.batch)
        self.steps = steps if steps is not None else (epochs or 0) * self.steps_per_epoch
        self.epochs = -(-self.steps // self.steps_per_epoch)
        whole, rest = divmod(self.steps, self.steps_per_epoch)
        self.end = whole * portions.per_epoch + -(-rest // self._per_portion)

    def _batches(self, portion: int) -> int:
        """Return the number of batches in a portion; an epoch's last portion and the run's last one may have fewer."""
        epoch, place = divmod(portion, self.portions.per_epoch)
        done = place * self._per_portion
        left = min(self.steps_per_epoch - done, self.steps - epoch * self.steps_per_epoch - done)
        return min(self._per_portion, left)

    @property
    def tickets(self) -> int:
        """Number of tickets that stand for work."""
        return len(self._unfinished) + max(0, self.end - self._next)

    def assignment(self, ticket: int) -> Assignment | None:
        """Return the assignment of a ticket, or None if the run's data are used up."""
        if ticket < 0:
            return self._given_back[-1 - ticket]
        if ticket < len(self._unfinished):
            portion, first = self._unfinished[ticket]
        else:
            portion, first = self._next + ticket - len(self._unfinished), 0
        if portion >= self.end:
            return None
        return Assignment(portion, first, self._batches(portion))

    def give_back(self, assignment: Assignment) -> int:
        """Return a ticket, which is negative, for batches that a replica took before it died."""
        self._given_back.append(assignment)
        return -len(self._given_back)

    def position(self, taken: int) -> tuple[int, list[tuple[int, int]]]:
        """Return the next portion, and the unfinished portions not taken again, after `taken` tickets."""
        waiting = list(self._unfinished[taken:])
        return min(self.end, self._next + max(0, taken - len(self._unfinished))), waiting

    def tickets_before(self, epoch: float) -> int:
        """Return the number of tickets that have been taken when `epoch` epochs are over."""
        return max(0, min(self.tickets, int(epoch * self.portions.per_epoch) - self._next + len(self._unfinished)))

    def opens_epoch(self, assignment: Assignment) -> int | None:
        """Return the epoch (from 1) that ended before this assignment, or None if it opens no new one."""
        if assignment.first or assignment.portion == 0 or assignment.portion % self.portions.per_epoch:
            return None
        return assignment.portion // self.portions.per_epoch
