"""Streaming DiLoCo on ranks: after each exchange, all workers have the same values of a fragment."""

import time
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest

import mpidl
from mpidl.algorithms import Diloco
from mpidl.algorithms.requests import FinishReduction, StartReduction
from mpidl.data import Dataset
from mpidl.data.dataset import ArraySplit
from mpidl.parameters import split
from mpidl.rules import Nesterov, Sgd

pytestmark = pytest.mark.mpi(min_size=2)
STREAMING = Diloco(rate=0.01, window=6, fragments=3, overlap=4, mixing=0.5)


def network():
    layers = [mpidl.Dense(7, activation="relu"), mpidl.Dense(5, activation="relu"), mpidl.Dense(3)]
    return mpidl.Network(layers, (5,), seed=3)


def dataset():
    random = np.random.default_rng(5)
    inputs = random.normal(size=(101, 5)).astype(np.float32)
    samples = ArraySplit(inputs, (inputs @ random.normal(size=(5, 3))).argmax(1))
    return Dataset("test", (5,), 3, samples, samples)


def train(path, algorithm=STREAMING, delay=0.0, seed=0, **options):
    """Train with sleeps of random length after gradients; return the network and the summary."""
    model, random = network(), np.random.default_rng(seed)
    compute = model.loss_and_gradient

    def slow(batch):
        time.sleep(random.exponential(delay))
        return compute(batch)

    model.loss_and_gradient = slow
    options = {
        "epochs": 6,
        "batch": 4,
        "portion": 4,
        "dir": path,
        "device": "cpu",
        "rule": Nesterov(0.5, 0.9),
    } | options
    return model, mpidl.train(model, dataset(), algorithm=algorithm, **options)


@pytest.fixture
def watched(watch):
    """Results of the reductions that this rank has finished, and how many were under way then."""
    results, under_way, parts, latest = [], [], deque(), []

    def see(request, given, parameters):
        if not latest:
            latest.append(parameters.copy())
        if isinstance(request, StartReduction):
            parts.append(slice(*request.part))
        elif isinstance(request, FinishReduction):
            own = parts.popleft()
            if given:
                latest[0][own] = request.vector[own]
            results.append([given, latest[0].tobytes()])
            under_way.append(len(parts))

    watch(Diloco, see)
    return results, under_way


@pytest.mark.parametrize("deterministic", [False, True])
def test_all_workers_have_the_results_in_common(comm, shared_path, watched, deterministic):
    results, under_way = watched
    model, summary = train(shared_path, delay=2e-3, seed=comm.rank, deterministic=deterministic)
    assert summary["samples"] == 6 * 101
    assert summary["replicas"] == comm.size - 1
    found = comm.allgather((results, model.parameters.tobytes()))
    (first, parameters), *others = found[1:]
    assert len(first) > 3
    assert all(each == (first, parameters) for each in others)
    assert first[-1] == [0, parameters]
    assert found[0][0] == []
    if comm.rank:
        assert max(under_way) == 2  # a fragment every second step, for four steps
        fragments = [(7 * 5 + 7), (5 * 7 + 5), (3 * 5 + 3)]
        pushed = summary["bytes_pushed"] / 4
        assert min(fragments) * summary["pushes"] < pushed < max(fragments) * summary["pushes"]


def test_a_deterministic_run_is_the_same_for_any_timing(comm, shared_path):
    first, _ = train(shared_path, deterministic=True, name="a", delay=2e-3, seed=comm.rank)
    second, _ = train(shared_path, deterministic=True, name="b", delay=1e-3, seed=100 + comm.rank)
    assert first.parameters.tobytes() == second.parameters.tobytes()
    assert not np.array_equal(first.parameters, network().parameters)


def test_one_fragment_without_overlap_is_diloco_bit_for_bit(comm, shared_path, monkeypatch):
    settings = {"rate": 0.01, "window": 4}
    plain, _ = train(shared_path, Diloco(**settings), deterministic=True, name="plain")
    monkeypatch.setattr(Diloco, "streamed", 1)
    streamed, _ = train(shared_path, Diloco(**settings), deterministic=True, name="streamed")
    assert streamed.parameters.tobytes() == plain.parameters.tobytes()


def test_it_trains_on_ranks_and_evaluates_after_each_epoch(comm, shared_path):
    _, summary = train(shared_path, epochs=40)
    assert summary["test_accuracy"] > 0.8
    if comm.rank == 0:
        lines = (shared_path / "run" / "metrics.jsonl").read_text().splitlines()
        assert sum('"test_loss"' in line for line in lines) >= 40


def test_cut_replicas_stream_too(comm, shared_path):
    if comm.size != 3:
        pytest.skip("takes 3 ranks")
    _, summary = train(shared_path, epochs=40, partitions=2)
    assert summary["test_accuracy"] > 0.8


def test_a_checkpoint_has_no_update_that_the_replicas_have_not_finished(comm):
    """Even if the next fragment's shard was updated before the reduction was finished that brought the order."""
    from mpidl.engines.mpi.by_fragments import ByFragments, Fragment
    from mpidl.shards.policies import ApplyAtOnce
    from mpidl.shards.scheduled_rule import ScheduledRule
    from mpidl.shards.shard import Shard
    from mpidl.transport.protocol import Order

    parts, fragments = split(11 * comm.size, 2), []
    for part in parts:
        ranges = [each.shift(part.start) for each in split(part.size, comm.size)]
        own = ranges[comm.rank]
        shard = Shard(own, np.ones(own.size), ScheduledRule(Sgd(1.0)), ApplyAtOnce(), own.size)
        fragments.append(Fragment(len(fragments) * comm.size + comm.rank, shard, ranges))
    orders, told = [0, 1, 2], Order(2, 0, 0)
    handler = ByFragments(fragments, lambda *_: None)
    handler.bind(SimpleNamespace(peers=comm, orders=SimpleNamespace(read=lambda: Order(orders[0], 0, 0))))
    vector = np.zeros(11 * comm.size)
    handler.start(vector)
    assert (vector == 1).all()
    vector[:] = 3.0
    del orders[0]
    handler.actions[StartReduction](StartReduction(vector, parts[0]))
    del orders[0]
    handler.actions[StartReduction](StartReduction(vector, parts[1]))
    while not all(fragment.applied for fragment in fragments):
        handler.progress()
    comm.Barrier()
    assert handler.checkpoint.order(told, 0).number == 0
    assert handler.actions[FinishReduction](FinishReduction(vector)) == comm.size
    # The order that came with the second reduction waits until the first one has been obeyed.
    assert handler.checkpoint.order(told, 0).number == 1
    states = handler.checkpoint.cut(1, comm.rank, None).shards
    found = [states[fragment.number][1]["parameters"].tolist() for fragment in fragments]
    assert found == [[1.0 - 3.0] * fragments[0].shard.range.size, [1.0] * fragments[1].shard.range.size]
    assert handler.actions[FinishReduction](FinishReduction(vector)) == comm.size
    assert handler.checkpoint.order(told, 1).number == 1
    assert (vector == -2).all()
    fetched = np.zeros_like(vector)
    handler.fetch(fetched)
    assert (fetched == -2).all()
    handler.actions[StartReduction](StartReduction(vector, parts[0]))
    assert handler.actions[FinishReduction](FinishReduction(vector)) == comm.size
    assert handler.checkpoint.order(told, 1).number == 2
    handler.unbind()
