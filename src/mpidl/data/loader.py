"""The loader: a worker's source of minibatches."""

from __future__ import annotations

from collections.abc import Callable

from mpidl.data.batch import Minibatch
from mpidl.data.dataset import Split
from mpidl.data.schedule import Assignment, Schedule


class Loader:
    """Takes portions and hands out their minibatches; if reading is slow, it takes and reads one portion ahead.

    Parameters
    ----------
    schedule : Schedule
    split : Split
    take : callable
        Takes a ticket: returns a value of the shared counter, each value to one worker only.
    on_epoch : callable
        Called with an epoch's number (from 1) by the worker that takes the first portion after it.
    prepare : bool
        Whether the split may prepare the next batch in the background; nothing else may use the split then.

    Attributes
    ----------
    current : Assignment or None
        The current portion.
    done : int
        Number of its batches that are done or handed out, counted from the portion's first.
    ahead : Assignment or None
        The portion that was taken in advance.
    tickets : int
        Number of portions that this worker has taken.
    """

    def __init__(
        self,
        schedule: Schedule,
        split: Split,
        take: Callable[[], int],
        on_epoch: Callable[[int], None],
        prepare: bool = False,
    ) -> None:
        self._prepare = prepare
        self._schedule, self._split, self._take, self._on_epoch = schedule, split, take, on_epoch
        self.current: Assignment | None = None
        self.ahead: Assignment | None = None
        self.done = 0
        self.tickets = 0
        self._batches: list[Minibatch] = []
        self._stopped = False

    def stop(self) -> None:
        """Hand out no more batches; `unfinished` returns what remains."""
        self._stopped = True

    def next(self) -> Minibatch | None:
        """Return the next batch, or None if there are no more."""
        if self._stopped:
            return None
        if self.current is None or self.done >= self.current.last:
            self._advance()
            if self.current is None:
                return None
        self.done += 1
        if self._prepare and self.done < self.current.last:
            following = self._batches[self.done]
            self._split.prepare(following.indices, following.epoch)
        return self._batches[self.done - 1]

    def unfinished(self) -> list[tuple[int, int]]:
        """Return the unfinished portions, each with the number of its batches that are done."""
        rest = []
        if self.current is not None and self.done < self.current.last:
            rest.append((self.current.portion, self.done))
        if self.ahead is not None:
            rest.append((self.ahead.portion, self.ahead.first))
        return rest

    def _assignment(self) -> Assignment | None:
        assignment = self._schedule.assignment(self._take())
        self.tickets += assignment is not None
        return assignment

    def _prefetch(self, assignment: Assignment | None) -> None:
        if self._split.contiguous and assignment is not None:
            self._split.prefetch(self._schedule.portions.indices(assignment.portion))

    def _advance(self) -> None:
        if self.ahead is not None:
            self.current = self.ahead
        else:
            self.current = self._assignment()
            self._prefetch(self.current)
        self.ahead = None
        if self.current is None:
            return
        self.done = self.current.first
        epoch = self._schedule.opens_epoch(self.current)
        if epoch is not None:
            self._on_epoch(epoch)
        self._batches = self._schedule.portions.minibatches(self.current.portion)
        if self._split.contiguous:
            self.ahead = self._assignment()
            self._prefetch(self.ahead)
