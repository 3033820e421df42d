"""Which portion a ticket stands for: the order of a run's data, also after a resume. Pure."""

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
        Length of the run in epochs, or in minibatches of all replicas together; exactly one is given.
    next_portion : int
        First portion that nobody has taken yet; 0 unless resumed.
    unfinished : sequence of (portion, batches done)
        Portions that were in work when the run was stopped; they come first.
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
        """Return how many batches a portion has: an epoch's last may have fewer, and so may the run's last."""
        epoch, place = divmod(portion, self.portions.per_epoch)
        done = place * self._per_portion
        left = min(self.steps_per_epoch - done, self.steps - epoch * self.steps_per_epoch - done)
        return min(self._per_portion, left)

    @property
    def tickets(self) -> int:
        """Number of tickets that stand for work."""
        return len(self._unfinished) + max(0, self.end - self._next)

    def assignment(self, ticket: int) -> Assignment | None:
        """Return what a ticket stands for, or None if the run's data are used up."""
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
        """Return a ticket, a negative one, for batches that a replica took and died with."""
        self._given_back.append(assignment)
        return -len(self._given_back)

    def position(self, taken: int) -> tuple[int, list[tuple[int, int]]]:
        """Return the next portion, and the unfinished ones that nobody took, after `taken` tickets."""
        waiting = list(self._unfinished[taken:])
        return min(self.end, self._next + max(0, taken - len(self._unfinished))), waiting

    def tickets_before(self, epoch: float) -> int:
        """Return how many tickets are taken when `epoch` epochs of data have been."""
        return max(0, min(self.tickets, int(epoch * self.portions.per_epoch) - self._next + len(self._unfinished)))

    def opens_epoch(self, assignment: Assignment) -> int | None:
        """Return the epoch (from 1) that ended before this assignment, or None if it opens no new one."""
        if assignment.first or assignment.portion == 0 or assignment.portion % self.portions.per_epoch:
            return None
        return assignment.portion // self.portions.per_epoch
