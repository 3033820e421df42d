"""Whole runs on the ranks of the test's world: one process, too few, one worker or several, by their number."""

import time

import h5py
import numpy as np
import pytest
from serial import serial_sgd

import mpidl
from mpidl import Adagrad, Adam, Downpour, Sgd
from mpidl.data import Dataset, Portions

pytestmark = pytest.mark.mpi
BATCH = 8


def dataset(split):
    return Dataset("test", (1,), None, split, split)


def run(model, split, path, **options):
    options = {"epochs": 2, "batch": BATCH, "seed": 7, "dir": str(path), "rule": Sgd(0.05)} | options
    if options.get("algorithm", mpidl.Downpour()).default_rule is None:
        options["rule"] = None
    return mpidl.train(model, dataset(split), **options)


def test_two_ranks_are_too_few(comm, shared_path, tally):
    if comm.size != 2:
        pytest.skip("takes 2 ranks")
    with pytest.raises(mpidl.UsageError, match=r"^2 ranks are too few: .* need 3"):
        run(*tally(), shared_path)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.usefixtures("worker")
def test_one_worker_is_serial_sgd_bit_for_bit(comm, shared_path, least_squares, dtype):
    servers = max(1, comm.size - 2)
    model, split = least_squares(dtype=dtype)
    summary = run(model, split, shared_path, servers=servers)
    expected = serial_sgd(least_squares(dtype=dtype), np.dtype(dtype).type(0.05))
    assert np.array_equal(model.parameters, expected)
    assert summary["staleness"] == {"mean": 0, "p50": 0, "p99": 0, "max": 0}
    assert summary["samples"] == 2 * 101
    assert summary["pushes"] == summary["fetches"] == 2 * 13


@pytest.mark.parametrize(
    "algorithm", [Downpour(), Downpour(n_push=3), Downpour(4, 3), Downpour(2, 2, "literal", overlap=True)]
)
@pytest.mark.usefixtures("worker")
def test_no_update_is_lost(comm, shared_path, tally, algorithm):
    model, split = tally()
    summary = run(model, split, shared_path, algorithm=algorithm, rule=Sgd(1.0), epochs=5)
    assert np.array_equal(model.parameters, -model.total(101, 5))
    assert summary["samples"] == 5 * 101
    assert sum(summary["staleness_histogram"]) == summary["pushes"]
    ranks = mpidl.open(summary["run_dir"]).status["ranks"]
    assert sum(each["samples"] or 0 for each in ranks) == summary["samples"]
    assert [each["role"].split()[0] for each in ranks][-1:] == ["worker"]
    assert {each["state"] for each in ranks if each["samples"] is not None} == {"done"}
    assert min(each["memory"] for each in ranks) > 1 << 24


@pytest.mark.usefixtures("worker")
def test_a_deterministic_run_does_not_depend_on_timing(comm, shared_path, least_squares):
    algorithm = Downpour(n_fetch=2, n_push=3, rate=0.01)
    options = {"algorithm": algorithm, "rule": Adam(0.01), "deterministic": True, "epochs": 4}
    first, second = least_squares()[0], least_squares()[0]
    run(first, least_squares()[1], shared_path, **options)
    run(second, least_squares()[1], shared_path, **options)
    assert np.array_equal(first.parameters, second.parameters)


def test_a_deterministic_run_does_not_depend_on_the_number_of_servers(comm, shared_path, least_squares):
    if comm.size != 4:
        pytest.skip("takes 4 ranks")
    # Two workers and one server here; the same two workers and three servers on the virtual engine's order.
    from mpidl.parameters import shards
    from mpidl.shards.scheduled_rule import ScheduledRule
    from mpidl.shards.shard import Shard

    model, split = least_squares()
    run(model, split, shared_path, rule=Adam(0.01), deterministic=True, epochs=4, portion=BATCH)
    portions = Portions(split.samples, BATCH, BATCH, seed=7)
    oracle, _ = least_squares()
    policy = Downpour().policy(2)
    rule = ScheduledRule(Adam(0.01))
    parts = [Shard(p, oracle.parameters[p.start : p.stop], rule, policy, p.size) for p in shards(13, 3)]
    for number in range(0, 4 * portions.per_epoch, 2):
        gradients = [
            oracle.loss_and_gradient(split.gather(indices))[1]
            for n in (number, number + 1)
            if n < 4 * portions.per_epoch
            for indices in portions.batches(n)
        ]
        for gradient in gradients:
            for part in parts:
                part.receive_chunk(0, 0, 0, gradient[part.range.start : part.range.stop])
    assert np.array_equal(model.parameters, oracle.parameters)


@pytest.mark.usefixtures("worker")
def test_a_run_leaves_whole_checkpoints_that_any_program_reads(comm, shared_path, least_squares):
    servers = max(1, comm.size - 2)
    model, split = least_squares()
    summary = run(model, split, shared_path, servers=servers, rule=Adagrad(0.05))
    directory = shared_path / "run"
    assert summary["run_dir"] == str(directory)
    names = sorted(entry.name for entry in (directory / "checkpoints").iterdir())
    assert names == ["0", "26"]
    with h5py.File(directory / "checkpoints" / "0" / "index.h5") as first:
        assert np.array_equal(first["parameters/parameters"][...], least_squares()[0].parameters)
        assert not first["rule/sum/parameters"][...].any()
    with h5py.File(directory / "checkpoints" / "26" / "index.h5") as last:
        assert last.attrs["samples"] == 202
        trained = last["parameters/parameters"][...]
        assert last["rule/sum/parameters"][...].all()
    assert not np.array_equal(trained, least_squares()[0].parameters)
    assert np.array_equal(model.parameters, trained)


@pytest.mark.usefixtures("worker")
def test_a_resumed_run_ends_as_an_unbroken_one(comm, shared_path, least_squares):
    """With one worker, which is exact: two epochs, then three more by another number of servers."""
    servers = max(1, comm.size - 2)
    rule = Adam(0.02)
    unbroken, split = least_squares()
    run(unbroken, split, shared_path, servers=servers, rule=rule, epochs=5, name="unbroken")
    broken, split = least_squares()
    run(broken, split, shared_path, servers=servers, rule=rule, epochs=2, name="broken")
    resumed, split = least_squares()
    summary = run(resumed, split, shared_path, servers=servers, rule=rule, epochs=5, name="broken", resume=True)
    assert summary["samples"] == 5 * 101
    assert summary["epochs"] == 5
    assert np.array_equal(resumed.parameters, unbroken.parameters)


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize(
    "algorithm", [mpidl.Sync(), mpidl.algorithms.Averaging(), mpidl.algorithms.Hogwild(), mpidl.Sandblaster()]
)
def test_every_rank_has_the_trained_parameters(comm, shared_path, algorithm):
    network = mpidl.Network([mpidl.Dense(10)], (8, 8), seed=comm.rank)
    summary = mpidl.train(network, mpidl.Digits(), algorithm=algorithm, epochs=1, dir=shared_path, device="cpu")
    checkpoints = shared_path / "run" / "checkpoints"
    newest = max((path for path in checkpoints.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
    with h5py.File(newest / "index.h5") as index:
        weight = index["parameters/0-dense/weight"][...]
    assert np.array_equal(network.parameters[: weight.size], weight.ravel())
    assert summary["epochs"] >= 1


@pytest.mark.mpi(min_size=3)
def test_the_time_of_a_run_begins_with_its_first_gradient(comm, shared_path, tally):
    model, split = tally()
    compute = model.loss_and_gradient
    model.loss_and_gradient = lambda batch: (time.sleep(0.01), compute(batch))[1]
    algorithm = mpidl.algorithms.Averaging(rate=0.01, tau=50)  # the only reduction is that at the end
    steps = 10 * (comm.size - 1)
    summary = run(model, split, shared_path, algorithm=algorithm, rule=None, epochs=None, steps=steps)
    assert summary["seconds"] > 0.09
