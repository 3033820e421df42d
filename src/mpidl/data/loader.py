"""A worker's source of minibatches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from mpidl.data.batch import Minibatch
from mpidl.data.dataset import Split
from mpidl.data.sampling import OwnPosition, PortionSampler
from mpidl.data.schedule import Assignment, Schedule


class Loader:
    """Takes portions and hands out their minibatches; if reading is slow, it takes one portion ahead.

    At the last minibatch of a portion it requests the next ticket, which has arrived when it is needed.

    Parameters
    ----------
    take : callable
        Takes a ticket: a value of the counter that all workers share, each value once.
    on_epoch : callable
        Called with an epoch's number (from 1) by the worker that takes the first portion after it.
    resumed : sequence of (int, int)
        Portions that the worker has taken before, each with its next batch; they come first.
    prepare : bool
        Whether the split prepares the next batches in the background; then nothing else may use the split.
    ahead : bool
        Whether to take a portion ahead even if reading is fast.
    ask : callable, optional
        Requests a ticket, for which `take` then waits; returns whether it has requested one.
    sampler : PortionSampler, optional
        Draws the samples of a portion; those of the schedule's portions by default.

    Attributes
    ----------
    current, ahead : Assignment or None
        The current portion, and the one that was taken in advance.
    done : int
        Number of the current portion's batches that are done or handed out.
    tickets : int
        Number of portions that this worker has taken, excluding those of `resumed`.
    retaken : list of int
        Those of their tickets that stand for what others have given back.
    schedule : Schedule
    sampler : PortionSampler
    """

    def __init__(
        self,
        schedule: Schedule,
        split: Split,
        take: Callable[[], int],
        on_epoch: Callable[[int], None],
        resumed: Sequence[tuple[int, int]] = (),
        prepare: bool = False,
        ahead: bool = False,
        ask: Callable[[], bool] = lambda: False,
        sampler: PortionSampler | None = None,
    ) -> None:
        self.sampler = sampler or PortionSampler(schedule.portions)
        self._prepare, self._announced = prepare, 0
        self._ask, self._asked = ask, False
        self._takes_ahead = ahead or split.contiguous or (prepare and split.lookahead > 1)
        # Portions that have been taken and come next.
        self._coming = deque(schedule.part(*each) for each in resumed)
        self.schedule, self._split, self._take, self._on_epoch = schedule, split, take, on_epoch
        self.current: Assignment | None = None
        self.ahead: Assignment | None = None
        self.done = self.tickets = 0
        self.retaken: list[int] = []
        self._batches: list[Minibatch] = []
        self._batches_ahead: list[Minibatch] = []
        # Parts of portions behind the run's last step.
        self._left: list[tuple[int, int]] = []
        self._stopped = False

    def stop(self) -> None:
        """Hand out no more batches."""
        self._stopped = True

    def next(self) -> Minibatch | None:
        """Return the next batch, or None if there are no more."""
        if self._stopped:
            return None
        while self.current is None or self.done >= self.current.last:
            self._advance()
            if self.current is None:
                return None
        self.done += 1
        if self.done == self.current.last and not (self._coming or self._asked):
            self._asked = self._ask()
        if self._prepare:
            self._announce()
        return self._batches[self.done - 1 - self.current.first]

    def give_back(self) -> None:
        """Let the last batch come again."""
        self.done -= 1
        self._announced += 1  # those that follow it are being prepared

    def coming(self, most: int) -> list[Minibatch]:
        """Return up to `most` of the batches that follow, in portions that have been taken."""
        if self.current is None or self._stopped:
            return []
        return self._unused()[:most]

    def _unused(self, used: int = 0) -> list[Minibatch]:
        """Return the batches drawn that follow, with the last `used` that were handed out."""
        if self.current is None:
            return []
        return self._batches[self.done - used - self.current.first :] + self._batches_ahead

    def _announce(self) -> None:
        """Have the split prepare the batches that follow, each once."""
        self._announced = max(0, self._announced - 1)
        for minibatch in self.coming(self._split.lookahead)[self._announced :]:
            self._split.prepare(minibatch.indices, minibatch.epoch)
            self._announced += 1

    def wait_for_ticket(self) -> None:
        """Wait for a requested ticket; its portion comes next."""
        if self._asked and (assignment := self._take_portion()) is not None:
            self._coming.append(assignment)

    def unfinished(self, unused: int = 0) -> list[tuple[int, int]]:
        """Return the portions that have been taken but not used up, each with its next batch.

        The last `unused` batches that were handed out count as not used.
        """
        self.wait_for_ticket()
        coming = [each for each in (self.ahead, *self._coming) if each is not None]
        return [*self._left, *self._rest(unused), *((each.portion, each.first) for each in coming)]

    def own_position(self, unused: int, unpushed: int) -> OwnPosition | None:
        """Return how far the replica is in data of its own; None if it has none.

        The last `unused` batches that were handed out count as not used; before them, the gradients of the last
        `unpushed` samples have not been pushed.
        """
        return self.sampler.position(sum(len(each.indices) for each in self._unused(unused)), unpushed)

    def _rest(self, unused: int = 0) -> list[tuple[int, int]]:
        """Return the current portion with its next batch, unless it is used up."""
        if self.current is None or self.done - unused >= self.schedule.batches(self.current.portion):
            return []
        return [(self.current.portion, self.done - unused)]

    def _take_portion(self) -> Assignment | None:
        self._asked = False
        ticket = self._take()
        assignment = self.schedule.assignment(ticket)
        self.tickets += assignment is not None
        self.retaken += [ticket] if ticket < 0 else []
        return assignment

    def _next_portion(self) -> tuple[Assignment | None, list[Minibatch]]:
        """Return the portion that comes next, which the split begins to read, and its minibatches."""
        assignment = self._coming.popleft() if self._coming else self._take_portion()
        if assignment is None:
            return None, []
        return assignment, self.sampler.begin(assignment, self._split.prefetch if self._split.contiguous else None)

    def _advance(self) -> None:
        self._left += self._rest()
        if self.ahead is not None:
            self.current, self._batches = self.ahead, self._batches_ahead
        else:
            self.current, self._batches = self._next_portion()
        self.ahead, self._batches_ahead = None, []
        if self.current is None:
            return
        self.done = self.current.first
        epoch, within = divmod(self.current.portion, self.schedule.portions.per_epoch)
        if epoch and not within and not self.done:
            self._on_epoch(epoch)
        if self._takes_ahead:
            self.ahead, self._batches_ahead = self._next_portion()
