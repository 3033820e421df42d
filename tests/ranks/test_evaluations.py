"""Sandblaster's evaluations where a worker stands still for long, at the moments at which it matters."""

import time

import numpy as np
import pytest

from mpidl.algorithms import Sandblaster
from mpidl.algorithms.coordination import BatchSegment, Evaluate
from mpidl.algorithms.requests import NextUnit
from mpidl.data.schedule import Portions
from mpidl.parameters import shards
from mpidl.topology.roles import assign

SIZE, PORTIONS = 11, 6
COORDINATOR, SERVER, LATE = 0, 1, 2
pytestmark = pytest.mark.mpi(min_size=3)


@pytest.fixture
def transport(comm):
    from mpidl.rma.transport import Transport
    from mpidl.transport.capacity import Capacity

    capacity = Capacity(shards(SIZE, 1), np.dtype(np.float64), units=PORTIONS)
    with Transport(comm, assign([0] * comm.size, servers=1), capacity) as transport:
        yield transport
        comm.Barrier()


class StandingStill:
    """A worker's link that stands still after each of some verbs in turn, until the coordinator lets it go on."""

    def __init__(self, link, verbs, comm):
        self._link, self._verbs, self._comm = link, list(verbs), comm
        self.tickets, self.evaluation = (Part(getattr(link, name), self, name) for name in ("tickets", "evaluation"))

    def __getattr__(self, name):
        return getattr(self._link, name)

    def do(self, verb, name):
        if [name] != self._verbs[:1]:
            return verb

        def then_stand_still(*args):
            answer = verb(*args)
            del self._verbs[0]
            self._comm.send(None, COORDINATOR)
            self._comm.recv(source=COORDINATOR)
            return answer

        return then_stand_still


class Part:
    """A part of the link."""

    def __init__(self, part, link, name):
        self._part, self._link, self._name = part, link, name

    def __getattr__(self, name):
        return self._link.do(getattr(self._part, name), f"{self._name}.{name}")


def next_units(transport, comm, verbs, count):
    """Take units as a worker that stands still after some verbs."""
    from mpidl.engines.mpi.sandblaster import SandblasterWorker

    worker = SandblasterWorker(
        transport.capacity.shards,
        algorithm=Sandblaster(unit=2),
        portions=Portions(PORTIONS * 4, 4, 4, seed=0),
        between=lambda: None,
        test=lambda: 0,
    )
    worker.bind(StandingStill(transport.worker(0), verbs, comm))
    return [worker.actions[NextUnit](NextUnit()) for _ in range(count)]


@pytest.mark.parametrize("verbs", [["tickets.take"], ["evaluation.read", "tickets.take"]])
def test_a_ticket_of_an_evaluation_that_is_over_is_let_go(comm, transport, verbs):
    last = 1 + len(verbs)
    if comm.rank == COORDINATOR:
        link = transport.coordinator()
        link.evaluation.show(1, Evaluate((BatchSegment("gradient", 0, PORTIONS),)))
        for number in range(2, last + 1):
            comm.recv(source=LATE)
            link.evaluation.show(number, Evaluate((BatchSegment("gradient", 2, 4),)))
            comm.send(None, LATE)
    elif comm.rank == LATE:
        units = next_units(transport, comm, verbs, 2)
        assert [(unit.evaluation, unit.number) for unit in units] == [(last, 0), (last, 1)]


def test_a_worker_that_finds_no_unit_waits_for_the_next_evaluation(comm, transport):
    if comm.rank == COORDINATOR:
        link = transport.coordinator()
        link.evaluation.show(1, Evaluate((BatchSegment("gradient", 0, 2),)))
        while link.evaluation.units_taken(1) < 2:
            link.posted.look()
        time.sleep(0.1)
        # The only unit, one useless ticket, and one more when it reads the evaluation that it knows.
        assert link.evaluation.units_taken(1) <= 3
        link.evaluation.show(2, Evaluate((BatchSegment("gradient", 2, 2),)))
    elif comm.rank == LATE:
        units = next_units(transport, comm, [], 2)
        assert [(unit.evaluation, unit.number) for unit in units] == [(1, 0), (2, 0)]


def test_a_late_worker_leaves_the_next_evaluation_its_backups(comm, transport):
    if comm.rank == COORDINATOR:
        link = transport.coordinator()
        link.evaluation.show(1, Evaluate((BatchSegment("gradient", 0, 2),)))
        comm.send(None, LATE)
        comm.recv(source=LATE)
        link.evaluation.show(2, Evaluate((BatchSegment("gradient", 2, 2),)))
        comm.send(None, LATE)
        comm.recv(source=LATE)
        assert link.evaluation.copies_taken(2) == 1
    elif comm.rank == LATE:
        link = transport.worker(0)
        comm.recv(source=COORDINATOR)
        link.tickets.take()  # Another worker has the only unit.
        (unit,) = next_units(transport, comm, ["evaluation.read_done"], 1)
        assert (unit.evaluation, unit.number) == (1, 0)
        assert [link.evaluation.take_copy(2, 0), link.evaluation.take_copy(2, 0), link.evaluation.take_copy(1, 0)] == [
            True,
            False,
            False,
        ]
        comm.send(None, COORDINATOR)


def test_an_answer_that_has_arrived_is_not_slept_on(comm, transport):
    """A look that finds nothing may be what makes the answer visible."""
    from mpidl.rma.backoff import Backoff

    calls, longest = 3, 5.0
    if comm.rank == COORDINATOR:
        link, backoff = transport.coordinator(), Backoff(transport.comm, transport.window, transport.doorbells, longest)
        for call in range(calls):
            link.calls.call(call)
            slept = 0
            while (answers := link.calls.answers()) is None:
                slept += backoff.pause()
            assert (answers, slept) == ([call], 0)
    elif comm.rank == SERVER:
        link, backoff = transport.server(0), Backoff(transport.comm, transport.window, transport.doorbells, longest)
        for call in range(calls):
            slept = 0
            while (found := link.calls.next()) is None:
                slept += backoff.pause()
            assert (found, slept) == (call, 0)
            link.calls.answer(found)
