"""Predictions without the arithmetic against virtual runs with it."""

import tracemalloc
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from mpidl.config import from_dict
from mpidl.data import ArraySplit, Dataset
from mpidl.engines.virtual import Hooks, Times, Training, VirtualEngine, VirtualTime
from mpidl.engines.virtual.times import Constant, Jitter
from mpidl.job.build import build
from mpidl.job.fill import fill, shards_of
from mpidl.job.job import Job
from mpidl.job.placed import place
from mpidl.job.ready import local_model, replica_state
from mpidl.nn import Dense, Flatten, Network, SparseEmbedding
from mpidl.runs import search
from mpidl.runs.features import sparse
from mpidl.runs.search import predict
from mpidl.shards.shard import CHUNK_BYTES

#: Links that are busy for about half of the time, or all the time, and one node whose cores are.
CLUSTERS = {
    "links": Times(Jitter(0.02, 0.2), Constant(1e-4), Constant(1e-4), bandwidth=4e7),
    "full links": Times(Jitter(0.002, 0.2), Constant(1e-4), Constant(1e-4), bandwidth=2e7),
    "nodes": Times(
        Jitter(0.02, 0.2), Constant(1e-4), Constant(1e-3), bandwidth=4e7, memory_bandwidth=4e8, ranks_per_node=3
    ),
    "cores": Times(Jitter(0.005, 0.2), Constant(1e-5), Constant(1e-3), bandwidth=4e8, cores=3),
}


def job(servers=1, layers=({"type": "dense", "units": 500}, {"type": "dense", "units": 10}), **sections):
    return build(
        from_dict(
            {
                "run": {"steps": 6 * 40},
                "data": {"source": "synthetic", "shape": [300], "samples": 4000, "batch": 4, "portion": 4},
                "model": {"layer": list(layers)},
                "topology": {"servers": servers},
                **sections,
            }
        )
    )


def simulated(job, replicas, times):
    """Return samples per second of a virtual run in the middle of it."""
    placed = place(job, replicas)
    ranges, taken = shards_of(placed, job.config.servers or replicas), []
    parts = [fill(placed, part, np.empty(part.size, job.dtype), CHUNK_BYTES // job.dtype.itemsize) for part in ranges]
    hooks = Hooks(on_batch=lambda: taken.append(engine.now))
    local = local_model(placed)
    state = partial(replica_state, placed, local)
    channel = sparse.in_one_process(placed, local.host, parts, alone=False)
    training = Training(job.algorithm, local.model, job.dataset.train, placed.schedule, state, channel)
    engine = VirtualEngine(training, parts, replicas, time=VirtualTime(times), hooks=hooks)
    engine.run()
    quarter = placed.schedule.steps // 4
    return 2 * quarter * job.config.data.batch / (taken[3 * quarter] - taken[quarter])


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize(
    ("name", "servers", "keys"),
    [
        ("downpour", 1, {}),
        ("downpour", 3, {"n_push": 2, "n_fetch": 2, "rate": 0.1}),
        ("downpour", 2, {"wire": "bf16"}),
        ("easgd", 2, {"rate": 1e-6}),
        ("sync", 0, {}),
    ],
)
def test_a_prediction_is_what_a_virtual_run_takes(name, servers, keys, cluster, monkeypatch):
    monkeypatch.setattr(search, "STEPS", (40, 40))
    planned = job(max(1, servers), algorithm={"name": name, **keys}, server={} if name == "easgd" else {"rate": 1e-6})
    found = predict(planned, planned.config.servers, 6, CLUSTERS[cluster])
    # Replicas that meet on a card, each with a push and the fetch behind it, may keep another order there.
    rel = 0.05 if cluster == "nodes" else 0.01
    assert found.samples_per_second == pytest.approx(simulated(planned, 6, CLUSTERS[cluster]), rel=rel)
    assert found.step_seconds == pytest.approx(6 * 4 / found.samples_per_second)


@pytest.mark.parametrize("cluster", ["links", "full links"])
@pytest.mark.parametrize(("prefetch", "keys"), [(0, {}), (1, {}), (1, {"n_push": 2, "n_fetch": 2, "rate": 0.1})])
def test_rows_take_their_time_and_bytes(monkeypatch, cluster, prefetch, keys):
    monkeypatch.setattr(search, "STEPS", (40, 40))
    times = replace(CLUSTERS[cluster], bandwidth=CLUSTERS[cluster].bandwidth / 40)
    values = {
        "run": {"steps": 6 * 40}, "data": {"source": "digits", "batch": 4, "portion": 4}, "model": {"factory": "a:b"},
        "topology": {"servers": 2}, "tables": {"prefetch": prefetch}, "algorithm": {"name": "downpour", **keys},
    }  # fmt: skip
    ids = np.arange(32_000).reshape(4000, 8)
    split, network = ArraySplit(ids, np.zeros(4000, int)), Network([SparseEmbedding(16), Flatten(), Dense(2)], (8,))
    planned = Job.of(from_dict(values), Dataset("ids", (8,), 2, split, split), network)
    found, vector, rows = predict(planned, 2, 6, times), 4 * planned.original.layout.size, 4 * 8 * (8 + 4 * 16)
    each = keys.get("n_push", 1)
    assert found.fetched == pytest.approx(vector / each + rows, rel=0.05)
    assert found.pushed == pytest.approx(vector / each + rows, rel=0.05)
    rel = 0.15 if prefetch and cluster == "full links" else 0.03
    assert found.samples_per_second == pytest.approx(simulated(planned, 6, times), rel=rel)


@pytest.mark.parametrize(
    ("keys", "every"),
    [
        ({"name": "downpour"}, 1),
        ({"name": "downpour", "n_push": 3, "n_fetch": 5, "rate": 0.1}, 3),
        ({"name": "diloco", "window": 300}, 300),
        ({"name": "averaging", "tau": 7}, 7),
        ({"name": "hogwild"}, 1),
    ],
)
def test_how_often_replicas_exchange(keys, every):
    planned = job(algorithm=keys)
    assert search.exchanges_every(planned.algorithm) == every
    if every > 100:
        # All of 622,040 bytes, of which each of two replicas has half; and as much again.
        found = predict(planned, 0, 2, Times(Constant(1e-3), bandwidth=1e7))
        assert found.step_seconds == pytest.approx(1e-3 + 0.0622 / 300, rel=0.01)


def test_bytes_of_a_step():
    size = 4 * (300 * 500 + 500 + 500 * 10 + 10)
    found = predict(job(2, algorithm={"name": "downpour", "n_push": 4}), 2, 3, CLUSTERS["links"])
    assert (found.fetched, found.pushed) == pytest.approx((size, size / 4), rel=0.02)
    halves = predict(job(2, algorithm={"name": "downpour", "wire": "bf16"}), 2, 3, CLUSTERS["links"])
    assert halves.pushed == pytest.approx(size / 2)


def test_a_large_model_takes_no_memory(monkeypatch):
    monkeypatch.setattr(search, "STEPS", (4, 4))
    large = job(layers=[*[{"type": "dense", "units": 100_000}] * 2, {"type": "dense", "units": 10}])
    predict(large, 4, 12, CLUSTERS["links"])
    tracemalloc.start()
    predict(large, 4, 12, CLUSTERS["links"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5e6
