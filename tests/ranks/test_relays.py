"""Pushes by way of a relay count once, their workers see them, and a checkpoint has them if they come before its mark.

Worker w's p-th push adds p * BASE**w to every element, so that an element tells how many pushes of each it has.
"""

import time
from functools import partial

import h5py
import numpy as np
import pytest

from late import Late
from mpidl.parameters import held_by_servers, split, within
from mpidl.shards.policies import AddChange
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard
from mpidl.storage.files import scratch
from mpidl.topology.roles import RelayRank, Roles
from mpidl.transport.protocol import ShardClock
from mpidl.wire import Differences

pytestmark = pytest.mark.mpi(min_size=3)
SIZE, CHUNK, BASE = 4099, 250, 10_000
CLOCK, CUT = (int(number) for number in ShardClock)


def triangle(pushes):
    return pushes * (pushes + 1) / 2


def whole(sums):
    """Return for each sum of the first numbers how many these are, which must be a whole number."""
    pushes = np.rint((np.sqrt(8 * sums + 1) - 1) / 2)
    assert (triangle(pushes) == sums).all()
    return pushes


class Pusher:
    """What a test does on a worker."""

    def __init__(self, transport, number, figures):
        self.number, self.link, self.pushes = number // transport.partitions, transport.worker(number), 0
        size = self.link.shards[-1].stop
        self._backoff, self._vector = self.link.backoff(), np.empty(size)
        self.clocks = np.zeros((figures, len(ShardClock)), np.int64)
        self._has = np.zeros((len(transport.workers), size))

    def until(self, ready):
        while not ready():
            self._backoff.pause()

    def push(self):
        self.pushes += 1
        self._vector[:] = self.pushes * float(BASE) ** self.number
        self.link.pushes.begin(self.clocks[:, CLOCK].tolist(), (self.pushes, self.pushes))
        self.until(lambda: self.link.pushes.send(self._vector))
        self._vector[:] = np.nan  # What has been sent may change.

    def fetch(self):
        """Fetch, and check that all own pushes are there, and of the others whole ones, no fewer than before."""
        self.until(self.link.pushes.applied)
        before = self.clocks.copy()
        self.link.fetches.start(self._vector, self.clocks)
        self.link.fetches.finish()
        assert (self.clocks >= before).all()
        assert self.link.orders.read().number >= self.clocks[:, CUT].max()
        rest = self._vector.copy()
        for worker in range(len(self._has)):
            rest, digit = np.divmod(rest, BASE)
            pushes = whole(digit)
            assert (pushes >= self._has[worker]).all()
            self._has[worker] = pushes
        assert not rest.any()
        assert (self._has[self.number] == self.pushes).all()

    def mark(self, order):
        """Mark an order when it has come."""
        self.until(lambda: self.link.orders.read().number >= order)
        self.until(lambda: self.link.pushes.mark(order))

    def meet(self, comm):
        self.until(comm.Ibarrier().Test)


@pytest.fixture(
    params=[("windows", 1), ("mixed", 2), ("messages", 1), ("windows", 2)], ids=lambda each: f"{each[0]}-{each[1]}"
)
def connection(request, comm):
    """Return how messages travel, and the number of servers."""
    if comm.size < 2 + request.param[1]:
        pytest.skip("no worker is left")
    return request.param


@pytest.fixture
def way(connection):
    return connection[0]


@pytest.fixture
def servers(connection):
    return connection[1]


def play(
    comm, path, way, servers, monkeypatch, act, late=False, pusher=Pusher, partitions=1, merging=None,
    side_state=lambda: None, **formats,
):  # fmt: skip
    """Let `act` push on the workers of a relay; return roles, and the server, the relay or the number of pushes.

    Rank 0 is the relay, the last ones are servers on another node, and rank 1 is also the coordinator.
    """
    from mpidl.relays.residuals import RelayResiduals
    from mpidl.relays.role import RelayRole
    from mpidl.relays.routes import routes
    from mpidl.rma.transport import Transport
    from mpidl.roles.server import Server
    from mpidl.transport.capacity import Capacity
    from mpidl.transport.protocol import Phase, State

    workers = tuple(range(1, comm.size - servers))
    roles = Roles(
        tuple(range(comm.size - servers, comm.size)),
        tuple(workers[first : first + partitions] for first in range(0, len(workers), partitions)),
        coordinator=1, relays=(RelayRank(0, workers),),
    )  # fmt: skip
    if way != "windows":
        monkeypatch.setenv("MPIDL_RANKS_PER_NODE", str(comm.size - servers))
    slices = split(SIZE, partitions)
    held = held_by_servers(slices, servers)
    ranges = [each.range for each in held]
    among = comm.Split(comm.rank in workers)
    found, dtype = None, np.dtype(np.float64)
    capacity = Capacity(ranges, dtype, chunk_bytes=8 * CHUNK, held=held, slices=slices, **formats)
    with Transport(comm, roles, capacity, way=way, routes=routes(roles, capacity)) as opened:
        if late:
            opened.window = Late(opened.window, comm.rank)
        if comm.rank == 0:
            vector, copies = np.zeros(SIZE), []
            if capacity.wire_fetch is not None:
                copies = [
                    Differences(capacity.wire_fetch, vector[slice(*part)], statistics=within(capacity.statistics, part))
                    for part in ranges
                ]
            residuals = RelayResiduals(0, partial(scratch, path), capacity.wire, ranges, dtype, capacity.statistics)
            clocks = np.zeros(len(ranges), np.int64)
            found = relay = RelayRole(0, vector, clocks, residuals, copies, merging=merging)
            relay.bind(opened)
            opened.quiesce()
            relay.run()
        elif comm.rank in roles.servers:
            number = roles.servers.index(comm.rank)
            own = {
                place: Shard(part, np.zeros(part.size), ScheduledRule(None), AddChange(), CHUNK)
                for place, (part, holder, _) in enumerate(held)
                if holder == number
            }
            for shard in own.values():
                shard.side_state = side_state()
            server = Server(number, own, path, partial(scratch, path), workers=len(roles.pushers()))
            server.bind(opened)
            opened.quiesce()
            server.run()
            server.unbind()
            found = server
        else:
            coordinator = opened.coordinator() if comm.rank == 1 else None
            opened.quiesce()
            found = pusher(opened, comm.rank - 1, servers)
            act(found, among, coordinator)
            found.until(found.link.pushes.applied)
            found.until(found.link.pushes.end)
            if coordinator is not None:
                states = coordinator.posted.servers["state"], coordinator.posted.intermediaries["state"]
                found.until(
                    lambda: coordinator.posted.look() or all((state == State.TRAINED).all() for state in states)
                )
                coordinator.orders.set_phase(Phase.EXIT)
        opened.quiesce()
        if comm.rank == 1:
            # What nobody receives may come to another communicator, once this one is freed.
            until = time.monotonic() + 0.02
            found.until(lambda: coordinator.posted.saved() or time.monotonic() > until)
            found.until(lambda: not coordinator.posted.saved())
    among.Free()
    return roles, found


def check_sums(comm, roles, found):
    """Check that the servers have every push once, and that the relay has sent fewer, whole vectors."""
    everywhere = comm.allgather(found.pushes if isinstance(found, Pusher) else None)
    pushes = [each for each in everywhere if each is not None]
    expected = sum(triangle(each) * float(BASE) ** worker for worker, each in enumerate(pushes))
    figures = found.status.figures if comm.rank == 0 else None
    relayed = comm.bcast(None if comm.rank else (int(figures["pushes"]), int(figures["bytes_pushed"])))
    assert relayed[1] == relayed[0] * SIZE * 8
    assert relayed[0] <= sum(pushes)
    if comm.rank in roles.servers:
        (served,) = found.served
        assert (served.shard.parameters == expected).all()
        assert served.shard.pushes == relayed[0]
        assert served.shard.staleness.counts.sum() == relayed[0]
    return relayed[0], sum(pushes)


@pytest.mark.parametrize("fetch_every", [1, 3])
def test_every_push_counts_once_however_late_its_steps_are(comm, shared_path, way, servers, monkeypatch, fetch_every):
    def act(pusher, among, coordinator):
        random = np.random.default_rng(pusher.number)
        for push in range(20):
            pusher.push()
            if push % fetch_every == 0:
                pusher.fetch()
            time.sleep(random.exponential(1e-3))

    check_sums(comm, *play(comm, shared_path, way, servers, monkeypatch, act, late=True))


@pytest.mark.mpi(min_size=4)  # Sharing takes two workers.
@pytest.mark.parametrize(("way", "servers"), [("windows", 1)])
def test_workers_of_one_speed_share_what_travels(comm, shared_path, way, servers, monkeypatch):
    steps = 20

    def act(pusher, among, coordinator):
        time.sleep(0.05 * pusher.number)
        for _ in range(steps):
            time.sleep(0.1)
            pusher.push()
            pusher.fetch()

    relayed, _ = check_sums(comm, *play(comm, shared_path, way, servers, monkeypatch, act))
    assert relayed <= 1.4 * steps


def saved(path, order, ranges):
    """Return what the checkpoint of an order has, and wait for it."""
    found = []
    for shard in range(len(ranges)):
        file = scratch(path, order) / f"shard-{shard}.h5"
        until = time.monotonic() + 60
        while True:
            try:
                with h5py.File(file) as opened:
                    found.append(opened["parameters"][...])
                    break
            except OSError:
                assert time.monotonic() < until, f"{file} is not written"
                time.sleep(1e-3)
    return np.concatenate(found)


def wait_for_files(pusher, coordinator, order, shards, relay=False):
    """Wait until the files of an order's shards, and of its relay, are reported to be complete."""
    reported = []

    def complete():
        reported.extend(each for each in coordinator.posted.saved() if each.order == order)
        has_relay = any(each.intermediary == 0 for each in reported)
        return sum(len(each.shards) for each in reported) == shards and (has_relay or not relay)

    pusher.until(complete)


def give_order(coordinator, order):
    """Order a checkpoint, if this rank has the coordinator's link."""
    if coordinator is not None:
        coordinator.orders.save(order, 0)


@pytest.mark.parametrize("orders", [(1, 2, 3), (5,)])
def test_a_checkpoint_has_what_was_pushed_before_the_marks_and_nobody_waits_for_them(
    comm, shared_path, way, servers, monkeypatch, orders
):
    """The workers mark one after the other; between two marks, each worker pushes, and fetches what it has pushed.

    An order is given up if a later one is marked before all have marked it.
    """

    def act(pusher, among, coordinator):
        random, workers = np.random.default_rng(3), among.size
        for order in orders:
            give_order(coordinator, order)
            pusher.push()
            marked = None
            given_up = order == 5 and workers > 1
            for turn in random.permutation(workers)[: workers - 1 if given_up else workers].tolist():
                if turn == pusher.number:
                    for _ in range(order):
                        pusher.push()
                    pusher.mark(order)
                    marked = pusher.pushes
                for _ in range(1 + (turn + pusher.number) % 3):
                    pusher.push()
                pusher.fetch()
                pusher.meet(among)
            if given_up:
                order += 1
                give_order(coordinator, order)
                for turn in random.permutation(workers).tolist():
                    if turn == pusher.number:
                        pusher.mark(order)
                        marked = pusher.pushes
                    pusher.push()
                    pusher.fetch()
                    pusher.meet(among)
            marks = among.allgather(marked)
            if coordinator is not None:
                expected = sum(triangle(each) * float(BASE) ** worker for worker, each in enumerate(marks))
                wait_for_files(pusher, coordinator, order, servers)
                assert (saved(shared_path, order, range(servers)) == expected).all()
            pusher.meet(among)

    check_sums(comm, *play(comm, shared_path, way, servers, monkeypatch, act))


def test_a_worker_that_ends_early_holds_up_no_checkpoint(comm, shared_path, way, servers, monkeypatch):
    def act(pusher, among, coordinator):
        give_order(coordinator, 1)
        for _ in range(3):
            pusher.push()
        leaves = pusher.number == 0 and among.size > 1
        if leaves:
            pusher.until(pusher.link.pushes.end)
        else:
            pusher.mark(1)
        counts = among.allgather(pusher.pushes)
        if not leaves:
            pusher.push()
            pusher.fetch()
        if coordinator is not None:
            wait_for_files(pusher, coordinator, 1, servers)
            expected = sum(triangle(each) * float(BASE) ** worker for worker, each in enumerate(counts))
            assert (saved(shared_path, 1, range(servers)) == expected).all()
        pusher.meet(among)

    check_sums(comm, *play(comm, shared_path, way, servers, monkeypatch, act))


def test_workers_see_a_cut_no_sooner_than_its_order(comm, shared_path, way, servers, monkeypatch):
    """A worker marks an order that has not come to its relay yet, as workers of other nodes may.

    Meanwhile the relay, which can't end its exchange, passes on what its workers post.
    """
    from mpidl.transport.protocol import WORKER_STATUS

    def act(pusher, among, coordinator):
        if coordinator is None:
            return
        pusher.until(lambda: pusher.link.pushes.mark(1))
        pusher.push()
        until = time.monotonic() + 0.2
        pusher.until(lambda: pusher.link.pushes.applied() or time.monotonic() > until)
        assert not pusher.link.pushes.applied()
        status = np.zeros(1, WORKER_STATUS)
        status["samples"] = 5
        pusher.link.reports.post(status)
        pusher.until(lambda: coordinator.posted.look() or coordinator.posted.workers["samples"][0] == 5)
        give_order(coordinator, 1)
        pusher.fetch()
        assert (pusher.clocks[:servers, CUT] == 1).all()

    check_sums(comm, *play(comm, shared_path, way, servers, monkeypatch, act))
