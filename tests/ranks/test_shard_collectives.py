"""Workers exchange the shards of vectors whose elements outnumber what a count can say."""

import numpy as np
import pytest

from mpidl.parameters import Range

pytestmark = pytest.mark.mpi

SIZES = {"even": [7, 7, 7, 7], "uneven": [1, 13, 2, 6], "one empty": [5, 0, 11, 3]}


@pytest.fixture(params=SIZES)
def ranges(request, comm):
    stops = np.cumsum(SIZES[request.param][: comm.size]).tolist()
    return [Range(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]


@pytest.fixture(params=[1, 3, 8, None])
def collectives(request, comm, ranges, monkeypatch):
    from mpidl.engines.mpi import shard_collectives

    if request.param is not None:
        monkeypatch.setattr(shard_collectives, "LARGEST", request.param)
    made = shard_collectives.ShardCollectives(comm, ranges, np.float32)
    yield made
    made.free()


def vectors(ranges):
    return np.random.default_rng(8).normal(size=(len(ranges), ranges[-1].stop)).astype(np.float32)


def test_all_shards_are_gathered(comm, collectives, ranges):
    whole, brought = vectors(ranges)[0], np.full(ranges[-1].stop, np.nan, np.float32)
    collectives.gather(whole[slice(*ranges[comm.rank])].copy(), brought)
    assert np.array_equal(brought, whole)


def test_parts_arrive_in_the_order_of_those_who_give(comm, collectives, ranges):
    own = ranges[comm.rank]
    for givers in ([0], [0, 1, 2, 3], [1, 3], [2]):
        given = np.isin(np.arange(comm.size), givers)
        received = np.full((comm.size, own.size), np.nan, np.float32)
        collectives.scatter(vectors(ranges)[comm.rank] if given[comm.rank] else None, given, received)
        expected = vectors(ranges)[given, slice(*own)]
        assert np.array_equal(received[: len(expected)], expected)
        assert np.isnan(received[len(expected) :]).all()


@pytest.mark.parametrize("largest", [2, 5])
def test_a_reduction_in_pieces_is_bitwise_the_whole_one(comm, ranges, monkeypatch, tmp_path, largest):
    from types import SimpleNamespace

    from mpidl.algorithms.requests import Reduce
    from mpidl.engines.mpi import shard_collectives
    from mpidl.engines.mpi.by_reduction import ByReduction
    from mpidl.rules import Adagrad
    from mpidl.shards.policies import ApplyAtOnce
    from mpidl.shards.scheduled_rule import ScheduledRule
    from mpidl.shards.shard import Shard
    from mpidl.transport.protocol import Order

    def until(ready):
        while not ready():
            pass

    waits = {"backoff": lambda longest: SimpleNamespace(until=until), "reports": SimpleNamespace(post=lambda row: None)}

    def trained():
        own = ranges[comm.rank]
        shard = Shard(own, np.ones(own.size, np.float32), ScheduledRule(Adagrad(0.1)), ApplyAtOnce(), max(1, own.size))
        handler = ByReduction(shard, ranges, lambda *_: None)
        handler.bind(SimpleNamespace(peers=comm, orders=SimpleNamespace(read=lambda: Order(0, 0, 0)), **waits))
        parameters = np.empty(ranges[-1].stop, np.float32)
        handler.start(parameters)
        for step in range(5):
            gives = (step + comm.rank) % 2 == 0
            handler.actions[Reduce](Reduce(vectors(ranges)[comm.rank] * (step + 1) if gives else None, parameters))
        handler.unbind()
        return parameters

    whole = trained()
    monkeypatch.setattr(shard_collectives, "LARGEST", largest)
    assert np.array_equal(trained(), whole)
    assert not np.array_equal(whole, np.ones_like(whole))
