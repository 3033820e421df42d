"""Pushes through mailboxes on real ranks: nothing lost, nothing twice, nothing out of order."""

import time

import numpy as np
import pytest
from ways import opened

from mpidl.parameters import Range
from mpidl.transport import capacity
from mpidl.wire import ErrorFeedback, parse

pytestmark = pytest.mark.mpi(min_size=2)


class Post:
    """Rank 0 serves, all others push; the fixture's parts in one place."""

    def __init__(self, comm, size, chunk_bytes, way="allocate", wire=None, encodes=True, statistics=()):
        from mpidl.rma.backoff import POLLING_SLEEP, RUNG_SLEEP, Backoff
        from mpidl.rma.doorbells import Doorbells
        from mpidl.rma.mailboxes import Inbox
        from mpidl.rma.outbox import Outbox
        from mpidl.rma.outboxes import Outboxes
        from mpidl.rma.regions import mailboxes
        from mpidl.transport.capacity import MailboxGeometry

        self.comm, self.workers, self.size = comm, comm.size - 1, size
        kind = (self.workers, np.float64, wire, chunk_bytes)
        geometry = MailboxGeometry.of(Range(0, size), *kind, within_nodes=wire is None, statistics=statistics)
        self.geometry = geometry
        self.doorbells = Doorbells(comm)
        self.window = opened(comm, mailboxes(geometry) if comm.rank == 0 else {}, way)
        longest = RUNG_SLEEP if way == "allocate" and self.doorbells.alone else POLLING_SLEEP
        self.backoff = Backoff(comm, self.window, self.doorbells, longest)
        if comm.rank == 0:
            self.inbox = Inbox(self.window, geometry, list(range(1, comm.size)), self.doorbells)
        else:
            feedback = None
            if wire is not None and encodes:
                feedback = ErrorFeedback(wire, size, np.float64, statistics)
            self.outbox = Outbox(self.window, 0, comm.rank - 1, geometry, feedback)
            self.outboxes = Outboxes([self.outbox], [slice(0, size)], self.doorbells)

    def wait(self, ready):
        while not ready():
            self.backoff.pause()
        self.backoff.reset()

    def push(self, values, fetched=0):
        self.outboxes.begin([fetched])
        self.wait(lambda: self.outboxes.send(values))

    def serve(self, handle):
        """Give every message to `handle` until all workers have said that they push no more."""
        from mpidl.rma.mailboxes import GROUP
        from mpidl.transport.protocol import END

        training = set(range(self.workers))
        while training:
            ready = self.inbox.waiting()
            for worker in ready:
                for message in self.inbox.drain(worker, GROUP):
                    if message.chunk == END:
                        training.discard(worker)
                    else:
                        handle(message)
            if ready:
                self.backoff.reset()
            else:
                self.backoff.pause()

    def sums(self):
        """Serve until no worker pushes any more; return the sums of what each has pushed, (workers, size)."""
        sums = np.zeros((self.workers, self.size))

        def handle(message):
            start = message.chunk * self.geometry.chunk
            sums[message.worker, start : start + message.values.size] += message.values

        self.serve(handle)
        return sums

    def close(self, ends=True):
        """Free everything, on workers once the end of their pushes has been sent."""
        if ends and self.comm.rank:
            self.wait(self.outboxes.end)
        self.window.free()
        self.doorbells.free()


@pytest.mark.parametrize("wire", ["bf16", "int8", "topk:0.5", "onebit"])
def test_workers_that_encode_and_workers_that_do_not_share_a_server(comm, way, wire):
    """Every other worker encodes; what each pushes, all ones, is exact in any format."""
    size, pushes = 4099, 9
    post = Post(comm, size, 8192, way, parse(wire), encodes=comm.rank % 2 == 0)
    if comm.rank == 0:
        sums = post.sums()
        whole = [worker for worker in range(post.workers) if (worker + 1) % 2]
        assert (sums[whole] == pushes).all()
        encoded = [worker for worker in range(post.workers) if worker not in whole]
        if not wire.startswith("topk"):
            assert (sums[encoded] == pushes).all()
        assert (sums[encoded] <= pushes).all()
        assert (sums[encoded].mean(1) > pushes / 3).all()
    else:
        for _ in range(pushes):
            post.push(np.ones(size))
        itemsize = 8 if comm.rank % 2 else None
        assert itemsize is None or post.outbox.bytes == pushes * size * itemsize
        assert itemsize is not None or post.outbox.bytes < pushes * size * 8
    post.close()


@pytest.mark.parametrize("wire", ["bf16", "int8", "topk:0.5", "onebit"])
def test_statistics_arrive_as_they_are_in_every_chunk(comm, way, wire):
    """They are at the ends of chunks, and over these."""
    size, pushes, statistics = 5000, 5, [Range(0, 3), Range(1000, 1030), Range(4090, 4099), Range(4990, 5000)]
    post = Post(comm, size, 8192, way, parse(wire), statistics=statistics)
    places = np.concatenate([np.arange(*part) for part in statistics])
    sent = np.random.default_rng(comm.rank).normal(size=(pushes, size))
    if comm.rank == 0:
        arrived = post.sums()[0]
        assert np.array_equal(arrived[places], np.random.default_rng(1).normal(size=(pushes, size)).sum(0)[places])
        assert not np.array_equal(arrived, np.random.default_rng(1).normal(size=(pushes, size)).sum(0))
    else:
        for values in sent:
            post.push(values)
    post.close()


@pytest.mark.parametrize(("size", "chunk_bytes"), [(1, 8), (7, 8), (13, 24), (1000, 1 << 18), (4099, 800)])
def test_every_chunk_arrives_once_from_the_last_to_the_first(comm, size, chunk_bytes, way):
    post = Post(comm, size, chunk_bytes, way)
    pushes = 25
    if comm.rank == 0:
        total, seen = np.zeros(size), [0] * post.workers

        def handle(message):
            assert (message.push + 1) * post.geometry.chunks - 1 - message.chunk == seen[message.worker]
            assert message.fetched == message.push * 3
            seen[message.worker] += 1
            start = message.chunk * post.geometry.chunk
            total[start : start + message.values.size] += message.values

        post.serve(handle)
        assert seen == [pushes * post.geometry.chunks] * post.workers
        ranks = sum(range(1, comm.size))
        assert np.array_equal(total, (np.arange(size) * ranks) * pushes * (pushes + 1) / 2)
    else:
        for push in range(pushes):
            post.push(np.arange(size) * comm.rank * (push + 1.0), push * 3)
            if push % 7 == 0:
                time.sleep(0.002 * comm.rank)
        assert post.outbox.pushes == pushes
    post.close()


def test_a_worker_waits_for_free_slots_and_learns_when_its_pushes_are_applied(comm, way):
    post = Post(comm, 50, 8, way)
    slots, chunks = post.geometry.slots, post.geometry.chunks
    assert slots < chunks
    if comm.rank == 0:
        post.window.quiesce()
        post.serve(lambda message: None)
    else:
        post.outboxes.begin([0])
        assert not post.outboxes.send(np.zeros(50))
        assert post.outbox.sent == slots
        assert not post.outboxes.send(np.zeros(50))
        assert post.outbox.sent == slots
        assert not post.outboxes.applied()
        post.window.quiesce()
        post.wait(lambda: post.outboxes.send(np.zeros(50)))
        post.wait(post.outboxes.applied)
        assert post.outbox.sent == chunks
    post.close()


def test_what_is_final_leaves_as_far_as_there_is_room(comm, way):
    """No chunk leaves that isn't final; once the server has made room, more leaves, though nobody waits for that."""
    post = Post(comm, 50, 8, way)
    slots, chunks, values = post.geometry.slots, post.geometry.chunks, np.arange(50.0)
    assert slots < chunks - 3
    if comm.rank == 0:
        post.window.quiesce()
        seen = np.zeros((post.workers, 50))

        def handle(message):
            seen[message.worker, message.chunk] += message.values[0] + 1

        post.serve(handle)
        assert (seen == 2 * (values + 1)).all()
    else:
        post.outboxes.begin([0])
        for final, sent in [(60, 0), (50, 0), (47, 3), (45, 5), (3, slots), (3, slots)]:
            post.outboxes.send(values, final)
            assert post.outbox.sent == sent
        post.window.quiesce()

        def all_but_three():
            post.outboxes.send(values, 3)
            return post.outbox.sent == chunks - 3

        post.wait(all_but_three)
        assert not post.outbox.delivered
        post.wait(lambda: post.outboxes.send(values))
        post.push(values)
    post.close()


@pytest.mark.parametrize(
    ("size", "chunk_bytes", "wire"),
    [(1, 8, None), (13, 24, "bf16"), (1000, 1 << 18, "int8"), (4099, 800, None), (4099, 800, "int8")],
)
def test_pushes_arrive_whole_whatever_leaves_early(comm, size, chunk_bytes, wire, way):
    """Elements are overwritten as they become final, so that what leaves too early is seen."""
    pushes, wire = 9, None if wire is None else parse(wire)
    post = Post(comm, size, chunk_bytes, way, wire)
    if comm.rank == 0:
        assert (post.sums() == pushes).all()
    else:
        random, values = np.random.default_rng(comm.rank), np.empty(size)
        for _ in range(pushes):
            post.outboxes.begin([0])
            values.fill(1e6)
            for final in sorted(random.integers(0, size + 1, random.integers(0, 6)).tolist(), reverse=True):
                values[final:] = 1
                post.outboxes.send(values, final)
            values.fill(1)
            post.wait(lambda: post.outboxes.send(values))
    post.close()


def test_who_waits_for_a_server_asks_it_once(comm, requests):
    """For room, and until its push has been applied, however long either takes."""
    from mpidl.rma.mailboxes import GROUP
    from mpidl.rma.requests import RequestKind

    size = 2 * capacity.MOST_SLOTS
    post = Post(comm, size, 8, "messages")
    slots, chunks = post.geometry.slots, post.geometry.chunks
    assert slots < chunks
    if comm.rank == 0:
        time.sleep(0.1)
        post.serve(lambda message: time.sleep(1e-3))
    else:
        post.outboxes.begin([0])
        post.wait(lambda: post.outboxes.send(np.zeros(size)))
        post.wait(post.outboxes.applied)
    post.close()
    asked = [operation for _, operation in requests]
    assert RequestKind.GET not in asked
    # For room for each group after the first ring, and once more.
    assert asked.count(RequestKind.GET_WHEN) <= -(-(chunks - slots) // GROUP) + 1
    assert asked or comm.rank == 0


def test_a_chunk_that_is_not_the_next_is_an_error(comm):
    from mpidl.errors import MpidlError
    from mpidl.rma.mailboxes import CHUNK, HEADER

    post = Post(comm, 10, 8)
    if comm.rank == 1:
        post.outboxes.begin([0])
        post.outboxes.send(np.zeros(10))
    post.window.quiesce()
    if comm.rank == 0:
        post.window.local("headers/0").reshape(post.workers, -1, HEADER)[0, -1, CHUNK] = 5
        with pytest.raises(MpidlError, match="worker 0's mailbox holds chunk 5 of push 0 where chunk 9"):
            post.inbox.head(0)
    post.close(ends=False)


@pytest.mark.usefixtures("one_node")
def test_an_idle_rank_is_cheap_and_wakes_when_rung(comm):
    """Counted, not timed: a sleeping rank looks a few times a second, and a ring makes it look at once."""
    post = Post(comm, 10, 8)
    if comm.rank == 0:
        looks, until = 0, time.perf_counter() + 0.3
        while time.perf_counter() < until:
            post.backoff.pause()
            looks += 1
        assert looks < 0.3 / 1e-3
        comm.Barrier()
        post.serve(lambda message: None)
    else:
        comm.Barrier()
        post.push(np.zeros(10))
        post.wait(post.outboxes.applied)
    post.close()
