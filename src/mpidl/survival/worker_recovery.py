"""Recovery of a worker whose process has ended: what it had begun is completed, or handed out again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from mpidl.algorithms.requests import Gradient, pushes
from mpidl.data.schedule import Assignment
from mpidl.engines.progress import Encodings
from mpidl.errors import MpidlError
from mpidl.job.checkpoints import replica_position
from mpidl.job.fill import own_statistics
from mpidl.job.ready import ReadyJob, replica_state
from mpidl.nn.model import PlacedModel
from mpidl.report.recorder import record_event
from mpidl.rma.outboxes import Remains
from mpidl.rma.taken_portions import TakenPortions
from mpidl.rma.transport import Transport
from mpidl.roles.events import lost
from mpidl.roles.role import Role
from mpidl.roles.worker import Worker
from mpidl.storage.position import ReplicaPosition
from mpidl.transport.protocol import STOPPED, TAKINGS, WORKER_STATUS, Phase, SavedFiles, ShardClock, State

#: Longest sleep between two looks at what others do.
LOOK_EVERY = 0.02


class WorkerRecovery(Role):
    """Ends the part of a worker whose process has ended, in a thread beside that of a living worker.

    The portions that it had taken and not pushed are handed out again. A push that some shards have only in part is
    computed again and completed or, where that has no meaning, completed by zeros and recorded as lost in part. Until
    the end is announced to the servers, it marks checkpoints. What none takes, because all others are done, is computed
    here. `Worker` evaluates the worker's part of the data.

    `number` is the worker's, and `host` lends its model. Only one process at a time enters `alone`.
    """

    def __init__(
        self, ready: ReadyJob, number: int, host: Worker, alone: AbstractContextManager[Any] | None = None
    ) -> None:
        super().__init__()
        self._ready, self._placed, self._job = ready, ready.placed, ready.job
        self._number, self._host, self._alone = number, host, alone or nullcontext()
        self._schedule = self._placed.schedule
        self._split = self._job.dataset.train.copy()
        self._status, self._marked = np.zeros(1, WORKER_STATUS), 0

    def adopt(self, transport: Transport) -> None:
        placed, algorithm, own_slice = self._placed, self._job.algorithm, self._ready.local.slice
        encodings = Encodings.of(
            transport.capacity.shards, self._job.dtype, algorithm.encoding(), None, own_statistics(placed, own_slice)
        )
        self._link = transport.worker(self._number, encodings.feedback)
        self._rank, self._portions, self._turn = transport.rank, TakenPortions(transport), transport.turn
        self._backoff = self._link.backoff(LOOK_EVERY)
        self._link.reports.read(self._status)

    def run(self) -> None:
        """Finish the worker's part, then report to the coordinator in its place until it orders the exit."""
        self._link.clocks.show(STOPPED)
        remains = self._link.pushes.resume()
        self._marked = remains.marked
        self._give_back(remains)
        if not remains.ended:
            if remains.torn is not None:
                self._complete(remains.push, remains.torn)
            while not self._others_have_taken():
                self._obey(ended=False)
                self._backoff.pause()
            self._backoff.until(self._link.pushes.end)
        self._post(State(max(State.TRAINED, self._status["state"][0])))
        while self._link.orders.read().phase != Phase.EXIT:
            self._obey(ended=True)
            self._backoff.pause()

    # What the worker had taken.

    def _assignment(self, ticket: int) -> Assignment | None:
        return self._schedule.assignment(ticket) if ticket >= 0 else self._schedule.part(*self._portions.part(ticket))

    def _size(self, ticket: int) -> tuple[int, int]:
        part = self._assignment(ticket)
        return (0, 0) if part is None else self._sizes([part])

    def _sizes(self, parts: Sequence[Assignment]) -> tuple[int, int]:
        """Return the numbers of batches and of samples in parts of portions."""
        return sum(part.last - part.first for part in parts), sum(self._schedule.samples(*part) for part in parts)

    def _taken(self) -> list[Assignment]:
        """Return what the worker had taken, in the order of its work."""
        position, firsts = replica_position(self._placed, self._number), dict[int, int]()
        if position is not None:
            for portion, first in [*((portion, first) for portion, first, _ in position.unpushed), *position.working]:
                firsts[portion] = min(first, firsts.get(portion, first))
        tickets = [ticket for ticket, _, _ in self._portions.entries(self._number)]
        parts = [part for ticket in tickets if (part := self._assignment(ticket)) is not None]
        return [*(self._schedule.part(*each) for each in firsts.items()), *parts]

    def _give_back(self, remains: Remains) -> None:
        """Hand out again what the worker had taken and not pushed."""
        while not self._handed_out(remains):
            self._backoff.pause()
        self._count()

    def _handed_out(self, remains: Remains) -> bool:
        """Hand out what is left; return False, to be called again, if another worker must first note what it took."""
        with self._alone:
            if not self._portions.settle(self._number, self._size):
                return False
            taken = self._taken()
            known = remains.pushed >= 0 and self._schedule.place(remains.pushed) in _places(taken)
            if self._portions.forgets(self._number) and not known:
                raise MpidlError(
                    f"worker {self._number} died with more than {TAKINGS} portions taken since its last push: only the "
                    f"last {TAKINGS} are known, so not all can be handed out again"
                )
            left = self._schedule.left(taken, remains.pushed)
            self._portions.give_back(self._number, left, remains.marked)
            return True

    def _count(self) -> None:
        """Count what the worker has taken and not given back as its own work."""
        position, entries = replica_position(self._placed, self._number), self._portions.entries(self._number)
        resumed = [] if position is None else [self._schedule.part(*part) for part in position.working]
        batches, samples = self._sizes(resumed)
        given_back = self._portions.given_back(self._number)
        batches_left, samples_left = self._sizes([self._schedule.part(*part) for part in given_back])
        _, own_batches, own_samples = entries[-1] if entries else (0, 0, 0)
        self._status["batches"] = batches + own_batches - batches_left
        self._status["samples"] = samples + own_samples - samples_left

    def _others_have_taken(self) -> bool:
        """Return whether others have taken all that was given back; once they are all done, compute a part here."""
        order, others_train = self._link.orders.read(), self._portions.others_train
        unclaimed = self._portions.unclaimed(self._number)
        if not unclaimed or self._portions.stopped or 0 < order.last <= self._marked:
            return True
        if not others_train:
            self._portions.note(self._number, -1 - unclaimed[0], self._size)
            part = self._assignment(-1 - unclaimed[0])
            assert part is not None
            self._borrow(lambda model: self._push(model, _places([part])))
            self._count()
        return False

    # Pushes.

    def _borrow(self, use: Callable[[PlacedModel], None]) -> None:
        """Have the host's thread call `use` with its model, and wait until it has."""
        done = Future[None]()

        def answer(model: PlacedModel) -> None:
            use(model)
            done.set_result(None)

        self._host.lend_model(answer)
        with self._turn.left():
            done.result()

    def _complete(self, push: int, torn: tuple[int, int]) -> None:
        """Complete a push that some shards lack, or have in part, computed on the first to the last of two batches."""
        first, last = (self._schedule.place(number) for number in torn)
        places = _places(self._taken())
        places = places[places.index(first) : places.index(last) + 1]
        algorithm = self._job.algorithm
        if algorithm.pattern(self._placed.replicas).repeatable and algorithm.encoding() is None:
            self._borrow(lambda model: self._push_rest(model, places, torn))
            return
        details = lost(self._number, push, torn, (portion for portion, _ in places), None, None)
        record_event(self._ready.directory, "lost", self._rank, f"worker {self._number}", **details)
        shape = (self._ready.local.slice.size,)
        vector = np.zeros((2, *shape) if algorithm.policy(self._placed.replicas).compares else shape, self._job.dtype)
        self._deliver_rest(vector, self._fetch(np.empty(shape, self._job.dtype)), torn)

    def _push_rest(self, model: PlacedModel, places: Sequence[tuple[int, int]], torn: tuple[int, int]) -> None:
        total, clocks = None, None
        for vector, fetched, _ in self._computed(model, places):
            if total is None:
                total, clocks = vector.copy(), fetched
            else:
                total += vector
        self._deliver_rest(total, clocks, torn)

    def _deliver_rest(self, vector: Any, clocks: Any, torn: tuple[int, int]) -> None:
        self._link.pushes.begin_rest(clocks[:, ShardClock.CLOCK].tolist(), torn)
        self._backoff.until(partial(self._link.pushes.send, vector))

    def _push(self, model: PlacedModel, places: Sequence[tuple[int, int]]) -> None:
        """Push what a replica computes on some batches."""
        for vector, clocks, batches in self._computed(model, places):
            self._link.pushes.begin(clocks[:, ShardClock.CLOCK].tolist(), batches)
            self._backoff.until(partial(self._link.pushes.send, vector))

    def _fetch(self, parameters: Any) -> np.ndarray:
        """Fetch the present parameters, and return the shards' clocks."""
        self._backoff.until(self._link.pushes.applied)
        clocks = np.zeros((len(self._link.shards), len(ShardClock)), np.int64)
        self._link.fetches.start(parameters, clocks)
        self._link.fetches.finish()
        return clocks

    def _computed(
        self, model: PlacedModel, places: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[Any, np.ndarray, tuple[int, int]]]:
        """Yield what a replica pushes for some batches, the clocks at its last fetch, and the first and last batch."""
        schedule, state = self._schedule, replica_state(self._placed, self._ready.local)
        coming, numbers, clocks = iter(places), list[int](), np.zeros((0, len(ShardClock)), np.int64)

        def next_batch() -> Any:
            portion, batch = next(coming, (-1, 0))
            if portion < 0:
                return None
            state.portion, state.batch = portion, schedule.number(portion, batch)
            numbers.append(state.batch)
            return schedule.portions.minibatches(portion)[batch]

        def fetch(parameters: Any) -> None:
            nonlocal clocks
            clocks = self._fetch(parameters)

        def gradient(request: Gradient) -> Any:
            if request.parameters is not model.parameters:
                model.parameters[:] = request.parameters
            batch = self._split.take(request.batch)
            _, found = request.function(model, batch)
            state.weight = batch.total
            return found

        replica = model.requests(self._job.algorithm, self._number, model.parameters, self._placed.replicas, state)
        for vector in pushes(replica, next_batch, fetch, gradient):
            yield vector, clocks, (numbers[0], numbers[-1])
            numbers.clear()

    # Reports to the coordinator in the worker's place.

    def _obey(self, ended: bool) -> None:
        """Mark a checkpoint that has been ordered, and report the worker's part in it."""
        order = self._link.orders.read()
        if order.number <= self._marked:
            return
        if not ended:
            self._backoff.until(lambda: self._link.pushes.mark(order.number))
        self._marked = order.number
        self._link.reports.saved(SavedFiles(order.number, replicas={self._number: self._position()}))

    def _position(self) -> ReplicaPosition:
        taken = self._link.orders.taken()
        tickets = [ticket for ticket, _, _ in self._portions.entries(self._number) if ticket >= taken]
        return ReplicaPosition(
            batches=int(self._status["batches"][0]),
            samples=int(self._status["samples"][0]),
            recent=[*self._portions.claimed(self._number), *tickets],
        )

    def _post(self, state: State) -> None:
        self._status["state"], self._status["rate"] = state, 0.0
        self._status["pushes"] = self._link.pushes[0].pushes
        self._link.reports.post(self._status, wake=True)


def _places(parts: Sequence[Assignment]) -> list[tuple[int, int]]:
    """Return the batches of parts of portions, each by its portion and its place there."""
    return [(part.portion, batch) for part in parts for batch in range(part.first, part.last)]
