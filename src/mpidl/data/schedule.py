"""The order of a run's data, also after a resume: the portion that each ticket stands for. Does no I/O."""

from __future__ import annotations

from collections.abc import Collection, Sequence
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

    def batches(self, portion: int) -> int:
        """Return the number of batches in a portion; an epoch's last portion may have fewer."""
        return min(self._per_portion, self.steps_per_epoch - portion % self.portions.per_epoch * self._per_portion)

    def _last(self, portion: int) -> int:
        """Return the number of batches that the run uses of a portion: not all of them if it ends in the portion."""
        epoch, place = divmod(portion, self.portions.per_epoch)
        return min(self.batches(portion), self.steps - epoch * self.steps_per_epoch - place * self._per_portion)

    @property
    def tickets(self) -> int:
        """Number of tickets that stand for work."""
        return len(self._unfinished) + max(0, self.end - self._next)

    def assignment(self, ticket: int) -> Assignment | None:
        """Return the assignment of a ticket, or None if the run's data are used up."""
        if ticket < 0:
            return self._given_back[-1 - ticket]
        portion, first = self._place(ticket)
        return self.part(portion, first) if portion < self.end else None

    def part(self, portion: int, first: int) -> Assignment:
        """Return the batches of a portion from `first` on; there may be none left."""
        return Assignment(portion, first, max(first, self._last(portion)))

    def _place(self, ticket: int) -> tuple[int, int]:
        """Return the portion of a ticket and its first batch; the run may be shorter."""
        if ticket < len(self._unfinished):
            return self._unfinished[ticket]
        return self._next + ticket - len(self._unfinished), 0

    def give_back(self, assignment: Assignment) -> int:
        """Return a ticket, which is negative, for batches that a replica took before it died."""
        self._given_back.append(assignment)
        return -len(self._given_back)

    def position(self, taken: int, beyond: Collection[int] = ()) -> tuple[int, list[tuple[int, int]]]:
        """Return where another schedule goes on that is to hand out what this one has not.

        Parameters
        ----------
        taken : int
            All tickets below it have been taken.
        beyond : collection of int
            Tickets from `taken` on that have been taken.

        Returns
        -------
        next_portion : int
        passed_over : list of (int, int)
            Portions before it that are still to be handed out, each with its first batch.
        """
        known = len(self._unfinished)
        end = max(known, min(self.tickets, max([taken, *(ticket + 1 for ticket in beyond)])))
        passed_over = [self._place(ticket) for ticket in range(taken, end) if ticket not in beyond]
        return self._next + end - known, passed_over

    def samples(self, portion: int, first: int, last: int) -> int:
        """Return the number of samples in batches [first, last) of a portion."""
        batch = self.portions.batch
        start = portion % self.portions.per_epoch * self.portions.portion
        whole = min(self.portions.portion, self.portions.samples - start)
        return min(last * batch, whole) - min(first * batch, whole)

    def tickets_before(self, epoch: float) -> int:
        """Return the number of tickets that have been taken when `epoch` epochs are over."""
        return max(0, min(self.tickets, int(epoch * self.portions.per_epoch) - self._next + len(self._unfinished)))

    def opens_epoch(self, assignment: Assignment) -> int | None:
        """Return the epoch (from 1) that ended before this assignment, or None if it opens no new one."""
        if assignment.first or assignment.portion == 0 or assignment.portion % self.portions.per_epoch:
            return None
        return assignment.portion // self.portions.per_epoch
