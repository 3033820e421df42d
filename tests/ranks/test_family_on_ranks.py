"""The asynchronous family on real ranks: what must hold whatever the timing."""

import json
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from small_runs import run as run_small

import mpidl
from mpidl.algorithms import ALGORITHMS, BackupSync, Diloco, Downpour, Easgd, Hogwild, Rescaled, Ringleader, Sync
from mpidl.rules import Sgd

pytestmark = pytest.mark.mpi(min_size=3)
SAMPLES = 101
run = partial(run_small, epochs=3, batch=4)


def test_sandblaster_with_shards_of_several_chunks(comm, shared_path):
    layers = [{"type": "dense", "units": 1000}, {"type": "dense", "units": 10}]
    summary = mpidl.train(
        config={"data": {"source": "digits"}, "model": {"layer": layers, "dtype": "float64"}},
        algorithm="sandblaster", dir=str(shared_path), epochs=3,
    )  # fmt: skip
    assert summary["iteration"]["number"] >= 1
    assert summary["test_accuracy"] > 0.3


@pytest.mark.parametrize("servers", [1, 2])
def test_hardsync_of_integer_gradients_is_their_mean(comm, shared_path, tally, servers):
    """All ranks but the coordinator are workers, whatever the configuration says of servers."""
    model, split = tally(size=7)
    summary = run((model, split), shared_path, algorithm=Sync(), batch=101, servers=servers)
    assert (summary["servers"], summary["replicas"]) == (0, comm.size - 1)
    assert summary["samples"] == 3 * SAMPLES
    if comm.rank > 0:
        # A batch is the whole data: each step's gradients are all equal, and so is their mean.
        steps = -(-3 // (comm.size - 1))
        assert np.array_equal(model.parameters, -model.total(SAMPLES, 1) * steps)


def test_hardsync_is_the_same_for_any_timing(comm, shared_path, least_squares):
    """Portions are taken in turn, sums in the workers' order."""

    def trained():
        model, split = least_squares()
        compute, random = model.loss_and_gradient, np.random.default_rng()

        def slow(batch):
            time.sleep(random.exponential(1e-4))
            return compute(batch)

        model.loss_and_gradient = slow
        run((model, split), shared_path, algorithm=Sync(), rule=Sgd(0.05), deterministic=True)
        return model.parameters

    assert np.array_equal(trained(), trained())


@pytest.mark.parametrize("backup", [0, 1])
def test_backup_workers_lose_nothing_but_what_is_late(comm, shared_path, tally, backup):
    model, split = tally()
    summary = run((model, split), shared_path, algorithm=BackupSync(backup))
    assert summary["samples"] == 3 * SAMPLES
    if backup == 0:
        assert summary["dropped"] == 0


class Own:
    """The objective (x - center)^2 / 2, with gradients that take some time."""

    def __init__(self, center, seconds):
        self.parameters, self._center, self._seconds = np.zeros(5), center, seconds

    def loss_and_gradient(self, batch):
        time.sleep(self._seconds)
        return 0.0, self.parameters - self._center


@pytest.mark.usefixtures("one_node")
@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("algorithm", [Rescaled(), Ringleader()])
def test_replicas_with_data_of_their_own_settle_at_the_mean_whatever_their_speeds(comm, shared_path, tally, algorithm):
    """The first is at 0 and about ten times slower than the others, at 1: the mean by speeds is 0.9 of two."""
    slow = comm.rank == 2
    model = Own(0.0 if slow else 1.0, 0.015 if slow else 0.001)
    summary = run((model, tally(samples=2400)[1]), shared_path, algorithm=algorithm, rule=Sgd(0.1), epochs=1, portion=4)
    assert (summary["samples"], summary["dropped"]) == (2400, 0)
    workers = comm.size - 2
    if comm.rank > 1:
        assert model.parameters == pytest.approx(np.full(5, 1 - 1 / workers), abs=0.15)


class Disjoint:
    """A model in which sample s has a gradient in its own elements only: those of s mod 5."""

    def __init__(self, size):
        self.parameters = np.zeros(size)

    def loss_and_gradient(self, batch):
        gradient = np.zeros_like(self.parameters)
        for sample in batch.inputs[:, 0].astype(int):
            gradient[sample % 5 :: 5] += sample + 1
        return 0.0, gradient


def test_hogwild_with_disjoint_supports_equals_serial(comm, shared_path, tally):
    """Batches of one sample: elements of different samples never meet; the same sample comes once an epoch."""
    _, split = tally(samples=5)
    model = Disjoint(1003)
    summary = run((model, split), shared_path, algorithm=Hogwild(), epochs=1, batch=1, portion=1)
    assert summary["samples"] == 5
    if comm.rank > 0:
        assert np.array_equal(model.parameters, -(np.arange(1003) % 5 + 1.0))


def test_hogwild_loses_no_update_where_workers_write_elements_of_their_own(comm, shared_path, tally):
    model, split = tally(size=1003, samples=400)
    own = slice(comm.rank, None, comm.size)

    def masked(batch):
        gradient = np.zeros(1003)
        gradient[own] = 1
        return 0.0, gradient

    model.loss_and_gradient = masked
    summary = run((model, split), shared_path, algorithm=Hogwild(), epochs=5)
    if comm.rank > 0:
        made = [-model.parameters[rank :: comm.size] for rank in range(comm.size)]
        assert all(np.all(each == each[0]) for each in made)
        assert sum(each[0] for each in made) == summary["pushes"] == 5 * 100


@pytest.mark.parametrize("wire", ["bf16", "topk:1", "topk:0.5", "onebit"])
def test_pushes_travel_in_every_format(comm, shared_path, tally, monkeypatch, wire):
    monkeypatch.setenv("MPIDL_RANKS_PER_NODE", "1")
    model, split = tally()
    summary = run((model, split), shared_path, algorithm=Downpour(wire=wire))
    sizes = {"bf16": 32, "topk:1": 13 * 12 + 4, "topk:0.5": 7 * 12 + 4, "onebit": 16 + 8}
    assert summary["bytes_pushed"] == sizes[wire] * summary["pushes"]
    if comm.rank > 1 and wire == "topk:1":
        assert np.array_equal(model.parameters, -model.total(SAMPLES, 3))


@pytest.mark.usefixtures("one_node")
def test_what_is_too_stale_is_dropped_and_its_portions_are_logged(comm, shared_path, tally):
    model, split = tally()
    compute, random = model.loss_and_gradient, np.random.default_rng(comm.rank)
    workers = comm.Split(comm.rank > 1)

    def slow(batch):
        if comm.rank > 1 and len(computed) < 2:
            # After a rehearsal, all compute at the first parameters, so that only one of these pushes isn't stale.
            workers.Barrier()
        computed.append(None)
        time.sleep(random.exponential(0.002))
        return compute(batch)

    computed, model.loss_and_gradient = [], slow
    summary = run((model, split), shared_path, algorithm=Downpour(max_staleness=0), portion=4)
    workers.Free()
    if comm.rank == 0:
        events = map(json.loads, (Path(summary["run_dir"]) / "events.jsonl").read_text().splitlines())
        drops = [event for event in events if event["event"] == "drop"]
        assert len(drops) == summary["dropped"]
        assert (len(drops) > 0) == (comm.size > 3)
        assert all(event["staleness"] > 0 and 0 <= event["portions"][0] < 3 * 26 for event in drops)


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"stacking"}))
def test_every_algorithm_trains(comm, shared_path, least_squares, name):
    model, split = least_squares()
    before = model.loss_and_gradient(split.gather(np.arange(SAMPLES)))[0]
    small = {"diloco": Diloco(rate=0.02, window=4), "easgd": Easgd(rate=0.2)}
    algorithm = small.get(name) or ALGORITHMS[name]()
    rule = algorithm.default_rule if algorithm.default_rule is None or name == "diloco" else Sgd(0.05)
    summary = run((model, split), shared_path, algorithm=algorithm, rule=rule, epochs=20)
    assert summary["algorithm"] == ALGORITHMS[name].name
    assert summary["test_loss"] < 0.6 * before
