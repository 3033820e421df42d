"""Pushes, fetches and tickets on real ranks whose every step may be late: nothing is lost, doubled or out of order."""

import time

import numpy as np
import pytest
from ways import opened

from late import Late
from mpidl.parameters import shards

pytestmark = pytest.mark.mpi(min_size=2)
SIZE, PUSHES, CHUNK_BYTES = 4099, 12, 4000


@pytest.mark.parametrize(("servers", "seed"), [(1, 0), (2, 1), (2, 2)])
def test_every_push_counts_once_and_every_fetch_holds_the_pushes_before_it(comm, way, servers, seed, monkeypatch):
    from mpidl.rma import sends
    from mpidl.rma.backoff import POLLING_SLEEP, Backoff
    from mpidl.rma.counters import Counter
    from mpidl.rma.doorbells import Doorbells
    from mpidl.rma.mailboxes import GROUP, Inbox
    from mpidl.rma.outbox import Outbox
    from mpidl.rma.outboxes import Outboxes
    from mpidl.rma.regions import mailboxes
    from mpidl.transport.capacity import MailboxGeometry
    from mpidl.transport.protocol import END

    if comm.size <= servers:
        pytest.skip("no worker is left")
    if seed:  # Long messages travel in many pieces.
        monkeypatch.setattr(sends, "LONGEST_PIECE", 5000)
    workers, parts = comm.size - servers, shards(SIZE, servers)
    geometries = [MailboxGeometry.of(part, workers, np.int64, chunk_bytes=CHUNK_BYTES) for part in parts]
    shapes = {}
    if comm.rank < servers:
        own = geometries[comm.rank]
        shapes = {
            **mailboxes(own),
            "values": (np.int64, parts[comm.rank].size),
            "tickets": (np.int64, 1),
            "clock": (np.int64, 1),
        }
    doorbells, memory = Doorbells(comm), opened(comm, shapes, way)
    late = Late(memory, 100 * seed + comm.rank)
    backoff = Backoff(comm, late, doorbells, POLLING_SLEEP)
    if comm.rank < servers:
        inbox = Inbox(late, own, list(range(servers, comm.size)), doorbells)
        values, training, seen = memory.local("values"), set(range(workers)), [0] * workers
        clock = memory.local("clock")
        while training:
            for worker in inbox.waiting():
                for message in inbox.drain(worker, GROUP):
                    if message.chunk == END:
                        training.discard(worker)
                        continue
                    assert (message.push + 1) * own.chunks - 1 - message.chunk == seen[worker]
                    seen[worker] += 1
                    start = message.chunk * own.chunk
                    values[start : start + message.values.size] += message.values
                    clock += message.chunk == 0
            backoff.pause()
        memory.quiesce()
        assert seen == [PUSHES * own.chunks] * workers
        pushed = workers * PUSHES * (PUSHES + 1) // 2
        assert (values == pushed).all()
        taken = []
    else:
        number = comm.rank - servers
        outboxes = [Outbox(late, rank, number, geometry) for rank, geometry in enumerate(geometries)]
        sending = Outboxes(outboxes, [slice(*part) for part in parts], doorbells)
        tickets, fetched, taken = Counter(late, 0, "tickets"), np.zeros(SIZE, np.int64), []

        def wait(ready):
            while not ready():
                backoff.pause()

        for push in range(1, PUSHES + 1):
            taken.append(tickets.fetch_add())
            vector = np.full(SIZE, push)
            sending.begin([0] * servers)
            wait(lambda vector=vector: sending.send(vector))
            vector[:] = -1  # What has been sent may change.
            before, followed = fetched.copy(), np.full(SIZE, -1)
            for rank, part in enumerate(parts):
                if late.to(rank).supports_deferred_get:
                    clocks = np.zeros((2, 1), np.int64)
                    outboxes[rank].follow(followed[slice(*part)], *clocks, ("values", "clock"))
                    late.to(rank).flush(rank)
                    outboxes[rank].followed()
                    assert (followed[slice(*part)] >= before[slice(*part)] + push).all()
                    assert clocks[0, 0] <= clocks[1, 0] >= push
            wait(sending.applied)
            for rank, part in enumerate(parts):
                late.to(rank).get(fetched[slice(*part)], rank, "values")
            for rank in range(servers):
                late.to(rank).flush(rank)
            assert (fetched >= before + push).all()
        wait(sending.end)
        memory.quiesce()
    everywhere = sorted(ticket for each in comm.allgather(taken) for ticket in each)
    assert everywhere == list(range(workers * PUSHES))
    memory.free()
    doorbells.free()


def test_puts_before_a_counter_are_there_when_it_is(comm, way):
    """Data of all lengths: in the message of their request, in one of their own, and several before one counter."""
    rounds, lengths = 40, [1, 255, 256, 257, 9001, 100_003]
    shapes = {"data": (np.int64, sum(lengths)), "round": (np.int64, comm.size), "seen": (np.int64, comm.size)}
    memory = opened(comm, shapes if comm.rank == 0 else {}, way)
    random = np.random.default_rng(comm.rank)
    if comm.rank == 0:
        rounds_of, seen, data = memory.local("round"), memory.local("seen"), memory.local("data")
        for number in range(1, rounds + 1):
            while rounds_of[1] < number:
                memory.serve()
                comm.Iprobe()
                memory.sync()
                time.sleep(random.exponential(1e-4))
            assert (data == number).all()
            memory.sync()
            seen[1] = number
    elif comm.rank == 1:
        seen, counter = np.zeros(1, np.int64), np.zeros(1, np.int64)
        for number in range(1, rounds + 1):
            start, values = 0, np.full(sum(lengths), number)
            for length in random.permutation(lengths).tolist():
                memory.to(0).put(values[:length], 0, "data", start)
                start += length
            memory.to(0).fence(0)
            counter[0] = number
            memory.to(0).put(counter, 0, "round", 1)
            memory.to(0).fence(0)
            while seen[0] < number:
                memory.to(0).get(seen, 0, "seen", 1)
                memory.to(0).flush(0)
    memory.free()


def test_ranks_that_wait_for_each_other_serve_each_other(comm, way):
    with opened(comm, {"values": (np.int64, 50_000)}, way) as memory:
        memory.local("values")[:] = comm.rank
        memory.quiesce()
        values = np.empty(50_000, np.int64)
        for _ in range(20):
            for rank in range(comm.size):
                memory.to(rank).get(values, rank, "values")
                memory.to(rank).flush(rank)
                assert (values == rank).all()


def test_a_counter_waits_for_long_data_that_are_late(comm, monkeypatch):
    from mpidl.rma.requests import RequestTag
    from mpidl.rma.sends import Sends

    shapes = {"data": (np.int64, 9001), "count": (np.int64, 1)}
    memory = opened(comm, shapes if comm.rank == 0 else {}, "messages")
    if comm.rank == 0:
        count, data = memory.local("count"), memory.local("data")
        comm.recv(source=1)
        for _ in range(200):
            memory.serve()
            time.sleep(1e-4)
        assert not count[0]
        comm.send(None, 1)
        while not count[0]:
            memory.serve()
        assert (data == 7).all()
    elif comm.rank == 1:
        start, held = Sends.start, []

        def hold_data(self, values, rank, tag, *lent):
            if tag == RequestTag.DATA:
                held.append((self, values, rank, tag, *lent))
            else:
                start(self, values, rank, tag, *lent)

        monkeypatch.setattr(Sends, "start", hold_data)
        values, one = np.full(9001, 7), np.ones(1, np.int64)
        memory.to(0).put(values, 0, "data")
        memory.to(0).fence(0)
        memory.to(0).put(one, 0, "count")
        comm.send(None, 0)
        comm.recv(source=0)
        for message in held:
            start(*message)
    memory.free()
