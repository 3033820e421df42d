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
        self._batches_per_epoch = sum(self._batches(n) for n in range(portions.per_epoch))
        steps = steps if steps is not None else (epochs or 0) * self._batches_per_epoch
        self.steps = steps
        self.epochs = -(-steps // self._batches_per_epoch)
        self.end, self._short = self._find_end(steps)

    def _batches(self, portion: int) -> int:
        return len(self.portions.batches(portion))

    def _find_end(self, steps: int) -> tuple[int, int]:
        """Return the number of portions that `steps` batches need, and the batches of the last one."""
        whole, rest = divmod(steps, self._batches_per_epoch)
        portion = whole * self.portions.per_epoch
        if not rest:
            return portion, self._batches(portion - 1) if portion else 0
        while rest > self._batches(portion):
            rest -= self._batches(portion)
            portion += 1
        return portion + 1, rest

    @property
    def tickets(self) -> int:
        """Number of tickets that stand for work."""
        return len(self._unfinished) + max(0, self.end - self._next)

    def assignment(self, ticket: int) -> Assignment | None:
        """Return what a ticket stands for, or None if the run's data are used up."""
        if ticket < len(self._unfinished):
            portion, first = self._unfinished[ticket]
        else:
            portion, first = self._next + ticket - len(self._unfinished), 0
        if portion >= self.end:
            return None
        return Assignment(portion, first, self._short if portion == self.end - 1 else self._batches(portion))

    def position(self, taken: int) -> tuple[int, list[tuple[int, int]]]:
        """Return the next portion, and the unfinished ones that nobody took, after `taken` tickets."""
        waiting = list(self._unfinished[taken:])
        return min(self.end, self._next + max(0, taken - len(self._unfinished))), waiting

    def tickets_before(self, epoch: float) -> int:
        """Return how many tickets are taken when `epoch` epochs of data have been."""
        return max(0, min(self.tickets, int(epoch * self.portions.per_epoch) - self._next + len(self._unfinished)))

    def opens_epoch(self, assignment: Assignment) -> int | None:
        """Return the number of the epoch (from 1) that ended before this assignment, or None if it opens no new epoch."""
        if assignment.first or assignment.portion == 0 or assignment.portion % self.portions.per_epoch:
            return None
        return assignment.portion // self.portions.per_epoch
