"""Sandblaster on ranks: the coordinator's requests, the servers' operations, and the units of workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from msgspec.structs import replace

from mpidl.algorithms.coordination import (
    BatchSegment,
    Coordinated,
    Evaluate,
    Iteration,
    Operate,
    UnitData,
    cut_units,
    evaluated,
    minibatches,
    targets,
)
from mpidl.algorithms.requests import Accrue, Fetch, NextUnit, Unit, drive
from mpidl.data.schedule import Portions, Schedule
from mpidl.engines.mpi.through_servers import ThroughServers
from mpidl.parameters import Layout
from mpidl.parameters.ranges import Range
from mpidl.rma.coordinator import CoordinatorLink
from mpidl.rma.server import ServerLink
from mpidl.rma.worker import WorkerLink
from mpidl.shards.shard import Shard
from mpidl.shards.state import PARAMETERS
from mpidl.shards.vectors import Accrual, Vectors, merged
from mpidl.transport.coordination import COPY, NOTICE, TICKETS, Begin, Complete, Notice, Obeyed
from mpidl.transport.protocol import PushMessage

#: Makes progress whenever it is resumed, and yields while it waits for other ranks.
Steps = Generator[None, None, Any]


class CoordinatorHooks(Protocol):
    """Decisions of the coordinator's role."""

    def iterated(self, iteration: Iteration) -> tuple[bool, bool, int]:
        """Act on an iteration.

        Return whether to stop, whether to evaluate the test data at the present parameters, and the ordinal of an order
        to save that servers must obey first; 0 for none.
        """
        ...

    def tested(self, number: int) -> bool:
        """Report the evaluation number `number` of the test data if it is complete; return whether it is."""
        ...

    def stopped(self) -> bool:
        """Return whether the run must stop."""
        ...


class SandblasterCoordinator:
    """Drives servers and workers.

    `state` is that from which the algorithm's coordinator resumes.
    """

    def __init__(
        self, algorithm: Coordinated, schedule: Schedule, layout: Layout, state: dict[str, Any] | None,
        hooks: CoordinatorHooks,
    ) -> None:  # fmt: skip
        self._algorithm, self._portions, self._hooks = algorithm, schedule.portions, hooks
        self._coordinator = algorithm.coordinator(schedule.portions.per_epoch, state, layout, schedule.samples_in_all)
        self._evaluation = self._tests = 0
        self._shown = Evaluate(())
        self._over = False
        self._messages, self._operating = 0, 0.0

    def bind(self, link: CoordinatorLink) -> None:
        """Reach the other ranks by `link` from now on; workers take the units of the present evaluation again."""
        self._link, self._servers = link, link.holders
        if self._evaluation:
            link.evaluation.show(self._evaluation, self._shown)
        if self._tests:
            link.evaluation.show_test(self._tests)
        if self._over:
            link.evaluation.show_over()

    def steps(self) -> Steps:
        """Run the whole training."""
        actions: dict[type, Callable[[Any], Steps]] = {
            Operate: self._operate, Evaluate: self._evaluate, Iteration: self._iterate,
        }  # fmt: skip
        yield from drive(self._coordinator, actions)
        self._over = True
        self._link.evaluation.show_over()

    def _operate(self, request: Operate) -> Steps:
        started = time.perf_counter()
        answers = yield from self._call(request)
        self._operating += time.perf_counter() - started
        return merged(answers)

    def _call(self, message: Any) -> Steps:
        """Call all servers with a message, and return their answers."""
        self._messages += 2 * self._servers
        self._link.calls.call(message)
        while (answers := self._link.calls.answers()) is None:
            yield
        return answers

    def _evaluate(self, request: Evaluate) -> Steps:
        units = cut_units(request.segments, self._algorithm.unit)
        yield from self._call(Begin(self._evaluation + 1, request.segments, self._algorithm.unit))
        self._evaluation, self._shown = self._evaluation + 1, request
        self._link.evaluation.show(self._evaluation, request)
        complete: dict[int, Complete] = {}
        handed_out = time.perf_counter()
        while len(complete) < self._servers:
            for number, notice in self._link.calls.notices():
                if notice.evaluation == self._evaluation:
                    complete[number] = notice
            if self._link.evaluation.units_taken(self._evaluation) < len(units):
                handed_out = time.perf_counter()
            yield
        self._messages += len(complete)
        first = complete[0]
        return evaluated(
            request.segments, units, first.losses, first.weights, self._portions,
            self._link.evaluation.copies_taken(self._evaluation), first.won, time.perf_counter() - handed_out,
        )  # fmt: skip

    def _iterate(self, request: Iteration) -> Steps:
        counted = replace(request, operating=self._operating, messages=self._messages)
        self._messages, self._operating = 0, 0.0
        stop, test, order = self._hooks.iterated(counted)
        while order and min((yield from self._call(Obeyed()))) < order:
            yield
        if test:
            self._tests += 1
            self._link.evaluation.show_test(self._tests)
            while not self._hooks.tested(self._tests):
                self._link.posted.look()
                yield
            stop = self._hooks.stopped()
        return stop


class SandblasterServer:
    """One server's vectors.

    `obeyed` returns the ordinal of the last order to save that was obeyed.
    """

    def __init__(self, shards: Mapping[int, Shard], obeyed: Callable[[], int]) -> None:
        self._shards, self._obeyed = shards, obeyed
        self._vectors = {
            number: Vectors(shard.vectors, shard.block, shard.range.start) for number, shard in shards.items()
        }
        for vectors in self._vectors.values():
            vectors.rehearse()
        self._accruals = {number: Accrual(self._vectors[number], shard.pieces) for number, shard in shards.items()}
        self._units = self._won = 0

    def bind(self, link: ServerLink) -> None:
        """Reach the other ranks by `link` from now on."""
        self._link = link
        link.units.expect(self._units)
        for unit in filter(self._has, range(self._units)):
            link.units.show(unit)

    def obey(self) -> bool:
        """Carry out the coordinator's next call; return whether there was one."""
        match self._link.calls.next():
            case Operate(operations):
                results = [vectors.carry_out(operations) for vectors in self._vectors.values()]
                if any(getattr(each, "target", None) == PARAMETERS for each in operations):
                    for shard in self._shards.values():
                        shard.publish()
                self._link.calls.answer(merged(results))
            case Begin(evaluation, segments, unit):
                units = cut_units(segments, unit)
                for accrual in self._accruals.values():
                    accrual.begin(evaluation, *targets(segments, units))
                self._units, self._won = len(units), 0
                self._link.units.expect(len(units))
                self._link.calls.answer(None)
            case Obeyed():
                self._link.calls.answer(self._obeyed())
            case _:
                return False
        return True

    def accrue(self, shard_number: int, message: PushMessage) -> None:
        """Accrue one chunk of a unit in one of the shards."""
        evaluation, number = divmod(message.fetched, TICKETS)
        copy, unit = divmod(number, COPY)
        loss, weight = np.array(message.batches, np.int64).view(np.float64).tolist()
        shard, accrual = self._shards[shard_number], self._accruals[shard_number]
        if message.chunk == 0:
            shard.pushes += 1
        values = shard.bring(message.values)
        if not accrual.add_chunk(evaluation, unit, message.chunk, values, loss, weight) or not self._has(unit):
            return
        self._won += copy
        self._link.units.show(unit)
        if all(each.complete == self._units for each in self._accruals.values()):
            self._link.calls.notify(Complete(accrual.evaluation, accrual.losses, accrual.weights, self._won))

    def _has(self, unit: int) -> bool:
        """Return whether all shards have accrued a unit."""
        return all(accrual.has(unit) for accrual in self._accruals.values())


#: Sent by the lead of a replica to its other ranks to evaluate the test data.
TEST = [-1]


class SandblasterWorker(ThroughServers):
    """A worker's part in evaluations.

    Units are made of `portions`, in the order of the first epoch. `between` is called while the worker waits for a
    unit. `test` evaluates pieces of the test data until none is left, and returns how many times they have been
    evaluated.
    """

    def __init__(
        self,
        shards: Sequence[Range],
        *,
        algorithm: Coordinated,
        portions: Portions,
        between: Callable[[], None],
        test: Callable[[], int],
    ) -> None:
        super().__init__(shards)
        self.actions = {Fetch: self._fetch, NextUnit: self._next_unit, Accrue: self._accrue}
        self._algorithm, self._order, self._between, self._test = algorithm, portions, between, test
        self._notice = np.zeros(NOTICE, np.int64)
        self._done = np.zeros(algorithm.units(portions.per_epoch), np.uint8)
        self._known = self._tested = self._task = 0
        self._places: Sequence[int] = ()
        self._units: list[UnitData] = []
        self._taken: set[int] = set()
        self._copy = False
        self._loss = self._weight = 0.0

    def bind(self, link: WorkerLink) -> None:
        super().bind(link)
        self._backoff = link.backoff()

    def computed(self, loss: float, weight: float) -> None:
        self._loss += loss
        self._weight += weight

    def _next_unit(self, request: NextUnit) -> Unit | None:
        self._loss = self._weight = 0.0
        self._link.reports.post(self.status.row)
        while found := self._next_task():
            if found == TEST:
                self._tested = self._test()
                continue
            evaluation, number, copy, task, *places = found
            if not self.lead.leads:
                self._know(evaluation, places)
                self._copy = bool(copy)
            return Unit(evaluation, number, minibatches(self._units[number], self._order), task)
        return None

    def _next_task(self) -> Sequence[int]:
        with self.status.wait:
            return self.lead.share(self._find)

    def _find(self) -> Sequence[int]:
        """Wait for the next task; called on the lead of the replica.

        It is empty if training is over, `TEST` to evaluate the test data, or else an evaluation, the number of a unit,
        whether it is a copy, its task, and the first portion and the count of each segment.
        """
        while True:
            self._link.evaluation.read(self._notice)
            if self._notice[Notice.OVER]:
                return ()
            if self._notice[Notice.TEST] != self._tested:
                return TEST
            number = self._take() if self._notice[Notice.NUMBER] else None
            if number is not None:
                return self._known, number, self._copy, self._task, *self._places
            self._backoff.until(self._has_news)

    def _has_news(self) -> bool:
        """Return whether there may be a new task; if not, act as between two looks."""
        if self._link.evaluation.changed():
            return True
        self._between()
        return False

    def _take(self) -> int | None:
        """Return a unit that no worker has taken, or else, with backups, a copy of an outstanding one."""
        evaluation, ticket = divmod(self._link.tickets.take(), TICKETS)
        if evaluation != self._known and not self._begin(evaluation):
            return None
        self._copy = ticket >= len(self._units)
        if self._copy:
            return self._take_copy() if self._algorithm.backups else None
        self._taken.add(ticket)
        return ticket

    def _begin(self, evaluation: int) -> bool:
        """Cut the units of an evaluation; return False if it is over because this worker was delayed."""
        while self._notice[Notice.NUMBER] < evaluation:
            self._backoff.progress()
            self._link.evaluation.read(self._notice)
        # The number says that the segments are there: they are read after it.
        self._link.evaluation.read(self._notice)
        if self._notice[Notice.NUMBER] > evaluation:
            return False
        count, self._task = int(self._notice[Notice.SEGMENTS]), int(self._notice[Notice.TASK])
        self._know(evaluation, self._notice[len(Notice) :][: 2 * count].tolist())
        return True

    def _know(self, evaluation: int, places: Sequence[int]) -> None:
        """Cut the units of an evaluation, given the first portion and the count of each segment."""
        if evaluation == self._known:
            return
        self._known, self._places, self._taken = evaluation, places, set()
        segments = [BatchSegment("", first, of) for first, of in zip(places[::2], places[1::2], strict=True)]
        self._units = cut_units(segments, self._algorithm.unit)

    def _take_copy(self) -> int | None:
        self._link.evaluation.read_done(self._done)
        for unit in np.flatnonzero(self._done[: len(self._units)] == 0).tolist():
            if unit not in self._taken and self._link.evaluation.take_copy(self._known, unit):
                self._taken.add(unit)
                return int(unit)
        return None

    def _accrue(self, request: Accrue) -> None:
        unit = request.unit
        loss, weight = np.array([self._loss, self._weight]).view(np.int64).tolist()
        number = unit.evaluation * TICKETS + unit.number + COPY * self._copy
        self.connection.begin(request.vector, [number] * len(self.connection.fetched), (loss, weight))
        self.connection.deliver(request.vector)
