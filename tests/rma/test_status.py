"""Status rows in the coordinator's window, on real ranks."""

import os
import time

import numpy as np
import pytest
from ways import transport_of_workers

from mpidl.parameters import Range

pytestmark = pytest.mark.mpi(min_size=2)


class Torn:
    """A window whose Put arrives number by number in some order, with a look of the coordinator after each."""

    def __init__(self, window, order, look):
        self._window, self._order, self._look = window, order, look

    def __getattr__(self, name):
        return getattr(self._window, name)

    def to(self, rank):
        return self

    def put(self, values, rank, name, offset=0):
        from mpi4py import MPI

        row = values.view(np.uint8)
        place = self._window.region(rank, name).displacement + offset * row.nbytes
        for start in self._order(range(0, row.nbytes, 8)):
            self._window._window.Put((row[start : start + 8], MPI.BYTE), rank, (place + start, 8, MPI.BYTE))
            self._window.flush(rank)
            self._look()


ORDERS = {
    "forward": iter,
    "backward": reversed,
    "shuffled": lambda starts: np.random.default_rng(3).permutation(starts),
}


@pytest.mark.parametrize("order", ORDERS)
def test_a_state_is_never_seen_before_what_it_announces(comm, order):
    from mpidl.transport.protocol import WORKER_STATUS, State

    with transport_of_workers(comm) as transport:
        if comm.rank == 0:
            link, seen = transport.coordinator(), set()
            while comm.recv(source=1):
                link.posted.look()
                row = link.posted.workers[0]
                if row["state"] == State.TRAINED:
                    assert (row["samples"], row["last_push"]) == (100, 7.5)
                if row["tests"]:
                    assert row["tested_samples"] >= 10 * row["tests"]
                    assert (link.posted.sums[0] >= row["tested_samples"] / 4).all()
                if row["state"] == State.DONE:
                    assert row["tested_samples"] == 30
                seen.add((int(row["state"]), int(row["tests"]), int(row["tested_samples"])))
                comm.send(None, 1)
            trained, done = (State.TRAINED, 1), (State.DONE, 1)
            assert {(State.TRAINED, 0, 0), (*trained, 10), (*trained, 20), (*done, 30)} <= seen
        elif comm.rank == 1:
            link = transport.worker(0)
            link.reports._window = Torn(
                link.reports._window, ORDERS[order], lambda: (comm.send(True, 0), comm.recv(source=0))
            )
            status = np.zeros(1, WORKER_STATUS)
            status["state"], status["samples"], status["last_push"] = State.TRAINED, 100, 7.5
            link.reports.post(status)
            for samples in 10, 20, 30:
                link.reports.post_sums(np.full((2, 2), samples / 4))
                status["tests"], status["tested_samples"] = 1, samples
                status["state"] = State.DONE if samples == 30 else State.TRAINED
                link.reports.post(status)
            comm.send(False, 0)
        comm.Barrier()


@pytest.mark.usefixtures("one_node")
def test_ranks_with_a_core_each_are_not_crowded(comm):
    before = os.sched_getaffinity(0)
    cores = sorted(set().union(*comm.allgather(before)))[:2]
    if len(cores) == 1:
        pytest.skip("one core is always crowded")
    try:
        os.sched_setaffinity(0, {cores[comm.rank % 2]})
        with transport_of_workers(comm) as apart:
            assert apart.crowded == (comm.size > 2)
        os.sched_setaffinity(0, {cores[0]})
        with transport_of_workers(comm) as together:
            assert together.crowded
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize("way", ["windows", "messages"])
def test_a_recent_order_is_what_was_asked_for_before_and_waits_for_no_answer(comm, way):
    with transport_of_workers(comm, way) as transport:
        link = transport.coordinator() if comm.rank == 0 else transport.worker(comm.rank - 1)
        if comm.rank > 0:
            assert link.orders.recent()[:2] == (0, 0)
        transport.quiesce()
        for number, last in [(1, 0), (2, 5), (3, 0)]:
            if comm.rank == 0:
                link.orders.save(number, last)
                link.tickets.show_taken(7 * number)
                comm.Barrier()
                for worker in range(1, comm.size):
                    comm.recv(source=worker)  # This rank answers nothing meanwhile.
            else:
                comm.Barrier()
                before = [(0, 0), (1, 0), (2, 5)][number - 1]
                assert link.orders.recent()[:2] == before
                assert link.orders.taken() == 7 * before[0]
                comm.send(None, 0)
            transport.quiesce()
            if comm.rank > 0:
                assert link.orders.taken() == 7 * before[0]
                assert number < 3 or link.orders.read()[:2] == (3, 0)
            transport.quiesce()


def make_relayed(comm, way, turned=False):
    """Rank 0 is a relay, the last is the server, all others are workers, and rank 1 is the coordinator, too."""
    from mpidl.relays.routes import routes
    from mpidl.rma.transport import Transport
    from mpidl.topology.roles import RelayRank, Roles
    from mpidl.transport.capacity import Capacity

    workers = tuple(range(1, comm.size - 1))
    relays = (RelayRank(0, workers[::-1] if turned else workers),)
    roles = Roles((comm.size - 1,), tuple((rank,) for rank in workers), coordinator=1, relays=relays)
    capacity = Capacity([Range(0, 1)], np.float32, sums=4)
    return Transport(comm, roles, capacity, way=way, routes=routes(roles, capacity))


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("way", ["windows", "messages"])
def test_a_relay_posts_what_its_workers_post_and_never_announces_what_is_not_final(comm, way):
    """The workers but the coordinator's go on posting while the relay reads and the coordinator looks."""
    from mpidl.relays.link import RelayLink
    from mpidl.transport.protocol import WORKER_STATUS, Phase, State

    posts = 200
    with make_relayed(comm, way) as transport:
        if comm.rank == 1:
            link, backoff, seen = transport.coordinator(), transport.backoff(), set()
            while not (link.posted.workers["state"][1:] == State.DONE).all():
                backoff.pause()
                link.posted.look()
                for row, sums in zip(link.posted.workers[1:].copy(), link.posted.sums[1:].copy(), strict=True):
                    assert row["tested_samples"] >= row["tests"]
                    # Read after the row, and may be of a later post.
                    assert (sums >= row["tested_samples"]).all()
                    seen.add(int(row["tests"]))
            assert len(seen) > 2
            assert link.posted.workers["samples"].tolist() == [0] + [posts] * (comm.size - 3)
            assert link.posted.sums[1:].tolist() == [[posts + rank] * 4 for rank in range(2, comm.size - 1)]
            assert link.posted.intermediaries["pushes"] == [7]
            link.orders.set_phase(Phase.EXIT)
        elif comm.rank in (0, comm.size - 1):
            relay = comm.rank == 0
            link, backoff = RelayLink(transport, 0) if relay else transport.server(0), transport.backoff()
            status = np.zeros(1, WORKER_STATUS)
            status["pushes"] = 7
            while link.orders.read().phase != Phase.EXIT:
                if relay:
                    link.reports.post(status)
                backoff.pause()
        else:
            link, status = transport.worker(comm.rank - 1), np.zeros(1, WORKER_STATUS)
            for post in range(1, posts + 1):
                link.reports.post_sums(np.full((2, 2), float(post + comm.rank)))
                status["samples"] = status["tested_samples"] = status["tests"] = post
                status["state"] = State.DONE if post == posts else State.WORKING
                link.reports.post(status)
                time.sleep(1e-3)
            while link.orders.read().phase != Phase.EXIT:
                time.sleep(1e-3)


class ReadBackwards:
    """Status whose first row is copied from its end, so that a post comes between its figures and its state."""

    def __init__(self, rows, post):
        self._rows, self._post = rows, post

    def __getitem__(self, name):
        return self._rows[name]

    def copy(self):
        copy = self._rows.copy()
        self._post(self._rows[:1])
        copy["state"] = self._rows["state"]
        return copy


@pytest.mark.mpi(min_size=3)
def test_a_relay_announces_nothing_that_was_posted_while_it_read(comm):
    from mpidl.relays.link import RelayLink
    from mpidl.transport.protocol import WORKER_STATUS, State

    with make_relayed(comm, "windows") as transport:
        if comm.rank == 0:
            link = RelayLink(transport, 0)

            def post(row):
                row["samples"], row["state"] = 100, State.DONE

            link.reports._statuses = ReadBackwards(link.reports._statuses, post)
            link.reports.post(np.zeros(1, WORKER_STATUS))
        transport.quiesce()
        if comm.rank == 1:
            link = transport.coordinator()
            link.posted.look()
            assert link.posted.workers[["samples", "state"]][0].tolist() == (0, 0)
        comm.Barrier()
        if comm.rank == 0:
            link.reports.post(np.zeros(1, WORKER_STATUS))
        transport.quiesce()
        if comm.rank == 1:
            link.posted.look()
            assert link.posted.workers[["samples", "state"]][0].tolist() == (100, State.DONE)


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("turned", [False, True])
def test_a_relay_posts_the_status_of_each_of_its_workers_at_its_place(comm, turned):
    from mpidl.relays.link import RelayLink
    from mpidl.transport.protocol import WORKER_STATUS

    with make_relayed(comm, "windows", turned) as transport:
        if 0 < comm.rank < comm.size - 1:
            link, status = transport.worker(comm.rank - 1), np.zeros(1, WORKER_STATUS)
            status["samples"] = 100 + comm.rank
            link.reports.post_sums(np.full((2, 2), float(comm.rank)))
            link.reports.post(status)
        transport.quiesce()
        if comm.rank == 0:
            RelayLink(transport, 0).reports.post(np.zeros(1, WORKER_STATUS))
        transport.quiesce()
        if comm.rank == 1:
            link = transport.coordinator()
            link.posted.look()
            assert link.posted.workers["samples"].tolist() == [100 + rank for rank in range(1, comm.size - 1)]
            assert link.posted.sums.tolist() == [[rank] * 4 for rank in range(1, comm.size - 1)]


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("way", ["windows", "messages"])
def test_a_relay_has_for_its_workers_what_the_coordinator_has_ordered(comm, way):
    from mpidl.relays.link import RelayLink
    from mpidl.transport.protocol import Order, Phase

    workers, told = comm.size - 2, 0
    with make_relayed(comm, way) as transport:
        coordinator = transport.coordinator() if comm.rank == 1 else None
        links = [transport.worker(comm.rank - 1)] if 0 < comm.rank <= workers else []
        links += [RelayLink(transport, 0)] if comm.rank == 0 else []
        for number, (last, phase, taken) in enumerate([(0, Phase.TRAIN, 3), (2, Phase.EVALUATE, 16), (2, 2, 17)], 1):
            # Relays are not told of each ticket.
            told = taken if taken - told >= 4 * workers else told
            if coordinator is not None:
                coordinator.tickets.show_taken(taken)
                coordinator.orders.save(number, last)
                coordinator.orders.set_phase(phase)
            transport.quiesce()
            for link in links:
                assert link.orders.read() == Order(number, last, phase)
            if 0 < comm.rank <= workers:
                assert links[0].orders.taken() == told
            transport.quiesce()


@pytest.mark.parametrize(("workers", "seconds"), [(1, 0.02), (20, 0.02), (21, 0.021), (1000, 1.0)])
def test_many_workers_post_and_look_more_rarely(comm, workers, seconds):
    from mpidl.rma.reports import StatusReports

    with transport_of_workers(comm) as transport:
        assert StatusReports(transport, "workers", 0, reporting=workers).interval(0.02) == seconds


@pytest.mark.mpi(min_size=3)
def test_relays_and_workers_without_one_share_the_coordinator(comm, monkeypatch):
    from mpidl.relays.link import RelayLink

    monkeypatch.setattr("mpidl.rma.reports.REQUESTS", 10)
    with make_relayed(comm, "windows") as transport:
        if comm.rank == 0:
            assert RelayLink(transport, 0).reports.interval(0.02) == 1 / 10
        elif comm.rank < comm.size - 1:
            assert transport.worker(comm.rank - 1).reports.interval(0.02) == (comm.size - 2) / 10
