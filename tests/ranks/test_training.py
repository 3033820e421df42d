"""Whole runs on the ranks of the test's world: one process, too few, one worker or several, by their number."""

import time

import h5py
import numpy as np
import pytest
from small_runs import run, serial_sgd

import mpidl
from mpidl import Adagrad, Adam, Downpour, Sgd
from mpidl.algorithms import Agn, Dcasgd, Diloco, Easgd, Softsync, Ssp, Sync
from mpidl.data import Portions

pytestmark = pytest.mark.mpi
BATCH = 8
#: Parameters of a shard so large that they travel in messages of their own, of several chunks.
LARGE = 40_009
#: Between all ranks, or between nodes of two ranks.
by_messages = pytest.mark.parametrize("transport", ["messages", "auto"], indirect=True)


def test_two_ranks_are_too_few(comm, shared_path, tally):
    if comm.size != 2:
        pytest.skip("takes 2 ranks")
    with pytest.raises(mpidl.UsageError, match=r"^2 ranks are too few: .* need 3"):
        run(tally(), shared_path)


@pytest.mark.parametrize(
    ("transport", "dtype"),
    [("windows", "float32"), ("windows", "float64"), ("messages", "float64"), ("auto", "float64")],
    indirect=["transport"],
)
@pytest.mark.usefixtures("worker")
def test_one_worker_is_serial_sgd_bit_for_bit(comm, shared_path, least_squares, transport, dtype):
    model, split = least_squares(dtype=dtype)
    options = {"servers": max(1, comm.size - 2), "rule": Sgd(0.05), "transport": transport}
    summary = run((model, split), shared_path, **options)
    expected = serial_sgd(least_squares(dtype=dtype), np.dtype(dtype).type(0.05))
    assert np.array_equal(model.parameters, expected)
    assert summary.keys() == mpidl.Summary.__required_keys__
    assert summary["staleness"] == {"mean": 0, "p50": 0, "p99": 0, "max": 0}
    assert summary["samples"] == 2 * 101
    assert summary["pushes"] == summary["fetches"] == 2 * 13


#: Algorithms that apply all that is pushed; where fetches are encoded, whatever these leave out.
COMPLETE = [
    *((Downpour(), 13), (Downpour(n_push=3), 13), (Downpour(4, 3), 13), (Downpour(2, 2, "literal", overlap=True), 13)),
    *((Agn(rate=1.0, window=1), 13), (Ssp(0), 13), (Ssp(2), 13), (Dcasgd(0.0), 13), (Softsync(1, modulate=False), 13)),
    *((algorithm(wire_fetch="onebit"), 13) for algorithm in (Downpour, Ssp, Easgd)),
    (Downpour(overlap=True, wire_fetch="onebit"), 13),
]
#: Those of which the vectors or the requests travel in another way as messages.
AS_MESSAGES = [
    *((Downpour(), LARGE), (Downpour(4, 3), 13), (Downpour(2, 2, "literal", overlap=True), LARGE)),
    *((Ssp(1), 13), (Dcasgd(0.0), LARGE)),
]


@pytest.mark.parametrize(
    ("transport", "algorithm", "size"),
    [("windows", *each) for each in COMPLETE]
    + [(transport, *each) for each in AS_MESSAGES for transport in ("messages", "auto")],
    indirect=["transport"],
)
@pytest.mark.usefixtures("worker")
def test_no_update_is_lost(comm, shared_path, tally, monkeypatch, transport, algorithm, size):
    if algorithm.wire_fetch != "fp32":
        monkeypatch.setenv("MPIDL_RANKS_PER_NODE", "1")
    model, split = tally(size)
    servers = 2 if comm.size > 3 and transport != "windows" else 1
    gathered = max(1, comm.size - 1 - servers) if isinstance(algorithm, Softsync) else 1
    summary = run((model, split), shared_path, algorithm=algorithm, epochs=3, servers=servers, transport=transport)
    if not isinstance(algorithm, Easgd):
        assert np.array_equal(model.parameters, -model.total(101, 3) / gathered)
    assert summary["samples"] == 3 * 101
    if isinstance(algorithm, Downpour):
        assert sum(summary["staleness_histogram"]) == servers * summary["pushes"]
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
    run((first, least_squares()[1]), shared_path, **options)
    run((second, least_squares()[1]), shared_path, **options)
    assert np.array_equal(first.parameters, second.parameters)


def test_a_deterministic_run_does_not_depend_on_the_number_of_servers(comm, shared_path, least_squares):
    if comm.size != 4:
        pytest.skip("takes 4 ranks")
    # Two workers and one server here; the same two workers and three servers on the virtual engine's order.
    from mpidl.parameters import shards
    from mpidl.shards.scheduled_rule import ScheduledRule
    from mpidl.shards.shard import Shard

    model, split = least_squares()
    run((model, split), shared_path, rule=Adam(0.01), deterministic=True, epochs=4, portion=BATCH)
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
    summary = run((model, split), shared_path, servers=servers, rule=Adagrad(0.05))
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
    run((unbroken, split), shared_path, servers=servers, rule=rule, epochs=5, name="unbroken")
    broken, split = least_squares()
    run((broken, split), shared_path, servers=servers, rule=rule, epochs=2, name="broken")
    resumed, split = least_squares()
    summary = run((resumed, split), shared_path, servers=servers, rule=rule, epochs=5, name="broken", resume=True)
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
    summary = run((model, split), shared_path, algorithm=algorithm, rule=None, epochs=None, steps=steps)
    assert summary["seconds"] > 0.09


@pytest.mark.mpi(min_size=3)
@by_messages
@pytest.mark.parametrize("algorithm", [Easgd(rate=0.01), Softsync(1), Diloco(), Sync()])
def test_deterministic_runs_are_those_of_windows(comm, shared_path, least_squares, transport, algorithm):
    found = []
    for each in ("windows", transport):
        model, split = least_squares()
        options = {"rule": Adam(0.01)} if isinstance(algorithm, Softsync | Sync) else {"rule": None}
        run((model, split), shared_path, transport=each, algorithm=algorithm, deterministic=True, **options)
        found.append(model.parameters)
    assert np.array_equal(*found)


@pytest.mark.mpi(min_size=3)
@by_messages
def test_a_rank_that_fails_ends_a_run_of_messages_before_it_begins(comm, shared_path, least_squares, transport):
    """All raise the same line, and another run can follow."""
    model, split = least_squares()
    with pytest.raises(mpidl.UsageError, match="servers"):
        run((model, split), shared_path, transport=transport, servers=comm.size)
    summary = run((model, split), shared_path, transport=transport, rule=Sgd(0.05))
    assert summary["samples"] == 202
