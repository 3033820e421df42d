"""Relays that encode, and those of cut replicas: nothing is lost, and fewer bytes travel."""

import json
import time

import h5py
import numpy as np
import pytest
from test_relays import CHUNK, SIZE, Pusher, give_order, play, saved, triangle, wait_for_files

from mpidl.parameters import Range, shards, split, within
from mpidl.relays.residuals import EARLY, LATE
from mpidl.storage.files import scratch
from mpidl.wire import WithStatistics, encoded_bytes, parse

way = pytest.fixture(params=["windows", "mixed", "messages"])(lambda request: request.param)
#: At the ends of chunks, and over these.
STATISTICS = [Range(0, 3), Range(CHUNK - 2, CHUNK + 3), Range(SIZE // 2 - 9, SIZE // 2 + 9), Range(SIZE - 1, SIZE)]
#: What a format leaves out is a number of the pushes' own digits, or is rounded.
EXACT = {"bf16": True, "int8": False, "topk:0.1": True, "onebit": False}


class Summing(Pusher):
    """Pushes integers at random, and adds up what it has pushed."""

    def __init__(self, transport, number, figures):
        super().__init__(transport, number, figures)
        self._random, self.sum = np.random.default_rng(number), np.zeros(SIZE)

    def push(self):
        self.pushes += 1
        vector = self._random.integers(-9999, 9999, SIZE).astype(float)
        self.sum += vector
        self.link.pushes.begin(self.clocks[:, 0].tolist(), (self.pushes, self.pushes))
        self.until(lambda: self.link.pushes.send(vector))

    def fetch(self):
        self.until(self.link.pushes.applied)
        self.link.fetches.start(self._vector, self.clocks)
        self.link.fetches.finish()


def check_end(comm, found, wire):
    """Check that what a push lacks on the servers is what the next one of the relay would bring."""
    pushed = comm.allreduce(found.sum if isinstance(found, Summing) else np.zeros(SIZE))
    servers = vector_of_servers(comm, found)
    if comm.rank == 0:
        left_out = np.concatenate([each.residual for each in found.residuals.feedback[EARLY]])
        assert left_out.any()
        assert not any(left_out[slice(*part)].any() for part in STATISTICS)
        assert not any(each.residual.any() for each in found.residuals.feedback[LATE])
        check_all_there(servers + left_out, pushed, wire)


def bytes_of_push(wire, part):
    encoding = WithStatistics(parse(wire), within(STATISTICS, part))
    return sum(encoding.size(start, min(CHUNK, part.size - start), float) for start in range(0, part.size, CHUNK))


def check_all_there(found, expected, wire):
    # What signs or integers stand for is rounded; every sum here has a few hundred summands below 10**6.
    np.testing.assert_allclose(found, expected, rtol=0, atol=0 if EXACT[wire] else 1e-6)


def vector_of_servers(comm, found):
    """Return what the servers have, on all ranks."""
    own = {each.shard.range: each.shard.parameters for each in getattr(found, "served", ())}
    parts = {part: values for every in comm.allgather(own) for part, values in every.items()}
    return np.concatenate([parts[part] for part in sorted(parts)])


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("wire", EXACT)
def test_nothing_is_lost_and_copies_follow_the_servers(comm, shared_path, way, monkeypatch, wire):
    def act(pusher, among, coordinator):
        for push in range(12):
            pusher.push()
            if push % 3:
                pusher.fetch()

    from mpidl.rma.regions import of_shard
    from mpidl.rma.transport import Transport

    copies, free = [], Transport.free

    def keep_copy(transport):
        if comm.rank in transport.roles.servers:
            number = transport.roles.servers.index(comm.rank)
            copy_of_relay = transport.window.local(of_shard(number).copies)[: transport.capacity.shards[number].size]
            copies.append(copy_of_relay.copy())
        free(transport)

    monkeypatch.setattr(Transport, "free", keep_copy)
    servers = comm.size - 2
    formats = {"wire": parse(wire), "wire_fetch": parse("topk:0.3"), "statistics": STATISTICS}
    _, found = play(comm, shared_path, way, servers, monkeypatch, act, pusher=Summing, **formats)
    check_end(comm, found, wire)
    copies = [copy for each in comm.allgather(copies) for copy in each]
    if comm.rank == 0:
        assert found.parameters.tobytes() == np.concatenate(copies).tobytes()
        figures, parts = found.status.figures, shards(SIZE, servers)
        assert figures["bytes_pushed"] == figures["pushes"] * sum(bytes_of_push(wire, part) for part in parts)
        fetched = sum(encoded_bytes(parse("topk:0.3"), part.size, float, within(STATISTICS, part)) for part in parts)
        assert figures["bytes_fetched"] == 8 * SIZE + (figures["fetches"] - 1) * fetched


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("wire", ["bf16", "topk:0.1"])
def test_a_checkpoint_and_what_its_relay_left_out_are_what_was_pushed_before_the_marks(
    comm, shared_path, way, monkeypatch, wire
):
    """Between two marks workers push. If they are several, the first marks an order that is then given up."""
    servers = 1

    def act(pusher, among, coordinator):
        for order in (1, 2, 3, 4):
            give_order(coordinator, order)
            pusher.push()
            given_up = order == 3 and among.size > 1
            for turn in range(1 if given_up else among.size):
                if turn == pusher.number:
                    pusher.push()
                    pusher.mark(order)
                    before = pusher.sum.copy()
                pusher.push()
                pusher.fetch()
                pusher.meet(among)
            if given_up:
                continue
            expected = among.allreduce(before)
            if coordinator is not None:
                wait_for_files(pusher, coordinator, order, servers, relay=True)
                with h5py.File(scratch(shared_path, order) / "relay-0.h5") as file:
                    residual = file["residual"][...]
                assert residual.any()
                check_all_there(saved(shared_path, order, range(servers)) + residual, expected, wire)
            pusher.meet(among)

    formats = {"wire": parse(wire), "statistics": STATISTICS}
    _, found = play(comm, shared_path, way, servers, monkeypatch, act, pusher=Summing, **formats)
    check_end(comm, found, wire)


#: 64-33-10
PARAMETERS = 65 * 33 + 34 * 10


@pytest.mark.mpi(min_size=4)
def test_a_checkpoint_has_whole_pushes_of_both_ranks_though_these_come_apart(comm, shared_path, way, monkeypatch):
    if comm.size > 4:
        pytest.skip("takes 4 ranks")

    def act(pusher, among, coordinator):
        random = np.random.default_rng(among.rank)
        for order in (1, 2, 3):
            give_order(coordinator, order)
            for _ in range(3):
                time.sleep(random.exponential(3e-3))
                pusher.push()
            before = pusher.pushes
            time.sleep(0.02 * among.rank)
            pusher.mark(order)
            pusher.push()
            pusher.fetch()
            if coordinator is not None:
                wait_for_files(pusher, coordinator, order, 2)
                assert (saved(shared_path, order, range(2)) == triangle(before)).all()
            pusher.meet(among)

    roles, found = play(comm, shared_path, way, 1, monkeypatch, act, late=True, partitions=2)
    relayed = comm.bcast(None if comm.rank else found.status.figures[["pushes", "bytes_pushed"]].tolist())
    assert relayed[1] == relayed[0] * SIZE * 8
    if comm.rank in roles.servers:
        assert [each.shard.range for each in found.served] == split(SIZE, 2)
        assert all((each.shard.parameters == triangle(12)).all() for each in found.served)
        assert all(each.shard.pushes == relayed[0] for each in found.served)


def test_a_job_of_cut_replicas_learns_through_a_relay(mpidl, tmp_path):
    """Of two nodes, the first has coordinator, server and two replicas, the second a relay with two replicas."""
    (tmp_path / "digits.toml").write_text(
        'run = {name = "digits", epochs = 8}\ndata = {source = "digits", batch = 32}\n'
        'server = {rule = "sgd", rate = 0.05}\ntopology = {relay = true, partitions = 2}\n'
        'model.layer = [{type = "dense", units = 33, activation = "relu"}, {type = "dense", units = 10}]\n'
    )
    done = mpidl("train", "digits.toml", "-n", 11, MPIDL_RANKS_PER_NODE="6")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "runs" / "digits" / "summary.json").read_text())
    assert (summary["relays"], summary["replicas"], summary["partitions"]) == (1, 4, 2)
    assert summary["test_accuracy"] > 0.88
    assert summary["pushes"] == 8 * 45
    # Of each push, a server receives two parts.
    received = sum(summary["staleness_histogram"]) / 2
    assert summary["bytes_pushed"] == summary["bytes_fetched"] == received * 4 * PARAMETERS
