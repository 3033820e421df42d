"""Runs whose workers, and servers, compute on GPUs, or a stand-in for them, on the ranks of the test's world."""

import json
import sys

import numpy as np
import pytest
from small_runs import dataset

import fake_cupy
import mpidl
from mpidl import Adagrad, Digits, Downpour, Sgd
from mpidl.algorithms import Adag, BackupSync, Dcasgd, Diloco, Eamsgd, Easgd, Hogwild, Sandblaster, Softsync, Ssp, Sync
from mpidl.nn import Dense, Network
from mpidl.nn.ondevice import Mirrored, OnDevice
from mpidl.rma import staging
from mpidl.rules import Adam, Momentum, Nesterov
from mpidl.shards.on_device import ShardOnDevice
from rows import in_turn

pytestmark = pytest.mark.mpi
THREE = pytest.mark.mpi(min_size=3)
#: Several servers or several workers.
FOUR = pytest.mark.mpi(min_size=4)
STAND_IN = pytest.mark.skipif(fake_cupy.COMPILER is None, reason="no C++ compiler")


def network():
    return Network([Dense(16, "relu"), Dense(10)], (8, 8), dtype="float64", seed=4)


def run(path, device, **options):
    model = network()
    name = device if isinstance(device, str) else device["kind"]
    options = {"steps": 30, "seed": 7, "batch": 64, "dir": str(path), "name": name} | options
    return model, mpidl.train(model, Digits(), device=device, **options)


def devices(path):
    """Return what the run's events say of devices."""
    events = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    return [
        (event["place"], role, event[role])
        for event in events
        if event["event"] == "device"
        for role in ("workers", "servers")
        if role in event
    ]


@STAND_IN
@pytest.mark.parametrize("algorithm", [Downpour(), Sync(), Hogwild()])
def test_workers_of_a_node_take_its_gpus_in_turn(comm, shared_path, monkeypatch, capfd, algorithm):
    first = 2 if algorithm.name == "downpour" else 1  # of the ranks that are workers
    if comm.size == 2 and first == 2:
        pytest.skip("2 ranks have no worker beside a server")
    workers = max(1, comm.size - first)
    exact = algorithm.name != "hogwild" or workers == 1
    monkeypatch.setattr(fake_cupy.STREAM, "strict", exact)
    options = {"algorithm": algorithm, "rule": Sgd(0.1), "deterministic": algorithm.name != "hogwild"}
    _, expected = run(shared_path, "cpu", **options)
    cupy = fake_cupy.fake(devices=2)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    used = []
    for kind in (OnDevice, Mirrored):
        compute = kind.loss_and_gradient
        monkeypatch.setattr(
            kind, "loss_and_gradient", lambda *each, compute=compute: (used.append(1), compute(*each))[1]
        )
    capfd.readouterr()
    model, summary = run(shared_path, "cuda", **options)
    comm.Barrier()
    worker = comm.size == 1 or comm.rank >= first
    assert cupy.cuda.used == ([max(0, comm.rank - first) % 2] if worker else [])
    assert comm.allreduce(len(used)) >= 30
    assert summary["test_loss"] == pytest.approx(expected["test_loss"], rel=1e-9 if exact else 0.3)
    if worker:
        assert type(model.parameters) is np.ndarray
        assert not np.array_equal(model.parameters, network().parameters)
    if comm.rank == 0:
        one, two = -(-workers // 2), workers // 2
        expected = [("Fake 0", "workers", one), ("Fake 1", "workers", two)]
        assert devices(shared_path / "cuda") == expected[: 1 + bool(two)]
        told = capfd.readouterr().err
        assert (f"computing on Fake 0: {one}, Fake 1: {two}\n" if two else "computing on Fake 0\n") in told


@THREE
@STAND_IN
def test_servers_take_gpus_too_if_they_are_to(comm, shared_path, monkeypatch, capfd):
    servers = comm.size - 2
    cupy = fake_cupy.fake(devices=2)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    run(shared_path, {"kind": "cuda", "shards": True}, steps=3, servers=servers)
    comm.Barrier()
    assert cupy.cuda.used == ([(comm.rank - 1) % 2] if comm.rank else [])
    if comm.rank == 0:
        of_workers, of_servers = [("Fake 1", "workers", 1)], [("Fake 0", "servers", 1)]
        if servers == 2:
            of_workers, of_servers = [("Fake 0", "workers", 1)], [("Fake 0", "servers", 1), ("Fake 1", "servers", 1)]
        assert devices(shared_path / "cuda") == of_workers + of_servers
        told = capfd.readouterr().err
        assert f"computing on Fake {servers % 2}; shards on Fake 0{'' if servers == 1 else ': 1, Fake 1: 1'}\n" in told


#: Algorithms that exchange through servers, with what they do to vectors between, and how these travel.
CASES = [
    (Downpour(n_fetch=3, n_push=3, rate=0.05), Adagrad(0.02)),
    (Downpour(n_push=2, wire="topk:0.3"), Sgd(0.1)),
    (Downpour(wire="onebit", max_staleness=1), Momentum(0.02)),
    (Dcasgd(), Adam(0.01)),
    (Softsync(wire="bf16"), Momentum(0.1)),
    (Easgd(tau=2), None),
    (Eamsgd(), None),
    (Adag(window=3), None),
    (Diloco(asynchronous=True, window=3), Nesterov(0.7, 0.9)),
]
DIRECT, STAGED, SHARDS = {"transfer": "direct"}, {"transfer": "staged"}, {"shards": True}
#: Shards do what their algorithm says; what workers give to MPI depends on the wire format.
ON_DEVICES = [(each, SHARDS) for each in CASES] + in_turn(CASES[:5], [(DIRECT,), (STAGED,)]) + [(CASES[0], STAGED)]


@pytest.fixture(scope="module")
def on_cpus():
    """A function: the summary of a case's run on CPUs, made once for all that is compared with it."""
    summaries = {}

    def summary(case, path, options):
        if case not in summaries:
            summaries[case] = run(path, "cpu", **options)[1]
        return summaries[case]

    return summary


@FOUR
@pytest.mark.parametrize(("case", "device"), ON_DEVICES)
def test_a_run_on_gpus_is_one_on_cpus(comm, shared_path, monkeypatch, cupy, on_cpus, case, device):
    algorithm, rule = case
    servers = comm.size - 2 if isinstance(rule, Adagrad | Adam) else 1
    options = {"algorithm": algorithm, "rule": rule, "deterministic": True, "servers": servers, "steps": 14}
    expected = on_cpus(case, shared_path, options)
    stand_in, direct = cupy.ndarray is fake_cupy.Array, device.get("transfer") == "direct"
    if direct and not stand_in and not staging.cuda_aware():
        pytest.skip("an MPI that isn't CUDA-aware")
    monkeypatch.setattr(staging, "cuda_aware", lambda: direct)
    given = []
    if stand_in:
        # A stand-in's pointer is the host's, and any MPI takes it.
        for name in ("outgoing", "incoming"):
            place = getattr(staging.Staging, name)

            def noted(self, values, rank, place=place):
                found = place(self, values, rank)
                if not isinstance(found, np.ndarray):
                    given.append(values.size)
                return found

            monkeypatch.setattr(staging.Staging, name, noted)
        cupy.cuda.pinned.clear()
    model, summary = run(shared_path, {"kind": "cuda"} | device, **options)
    close = 1e-12 if stand_in else 1e-6
    for key in ("test_loss", "train_loss", "test_accuracy", "pushes", "fetches", "bytes_pushed", "bytes_fetched"):
        assert summary[key] == pytest.approx(expected[key], rel=close), key
    if comm.rank > servers:
        assert type(model.parameters) is np.ndarray
        assert not np.array_equal(model.parameters, network().parameters)
        if stand_in:
            # Of the shards' size, for fetches, is what MPI was given: the device's memory, or pinned memory just once.
            shards = {-(-model.parameters.size // servers), model.parameters.size // servers}
            assert bool(shards & set(given)) == bool(given) == direct
            pinned = [size for size in cupy.cuda.pinned if size // 8 in shards]
            assert (not pinned) if direct and algorithm.wire == "fp32" else (1 <= len(pinned) <= 2 * servers)


@FOUR
@pytest.mark.parametrize(
    ("algorithm", "device"),
    [
        (Downpour(overlap=True), DIRECT),
        (Downpour(overlap=True), STAGED),
        (Downpour(overlap=True), SHARDS),
        (Ssp(), SHARDS),
        (BackupSync(), SHARDS),
        (Sandblaster(history=3), STAGED),
        (Sandblaster(method="ssbroyden"), SHARDS),
    ],
)
def test_what_timing_decides_is_trained_on_gpus_too(comm, shared_path, monkeypatch, cupy, algorithm, device):
    direct = device.get("transfer") == "direct"
    if direct and cupy.ndarray is not fake_cupy.Array and not staging.cuda_aware():
        pytest.skip("an MPI that isn't CUDA-aware")
    monkeypatch.setattr(staging, "cuda_aware", lambda: direct)
    rule = None if algorithm.name == "sandblaster" else Adagrad(0.05)
    steps = 80 if rule is not None else 250
    options = {"algorithm": algorithm, "rule": rule, "servers": comm.size - 2, "steps": steps}
    model, summary = run(shared_path, {"kind": "cuda"} | device, **options)
    assert summary["test_loss"] < 0.75 * np.log(10)
    if algorithm.name == "sandblaster":
        # But for the order of its sums.
        _, expected = run(shared_path, "cpu", **options)
        assert summary["test_loss"] == pytest.approx(expected["test_loss"], rel=1e-3)
    if comm.rank > comm.size - 2:
        assert type(model.parameters) is np.ndarray
        assert not np.array_equal(model.parameters, network().parameters)


@FOUR
@pytest.mark.parametrize("shards", [(True, True), (True, False), (False, True)])
def test_a_resumed_run_ends_as_an_unbroken_one(comm, shared_path, cupy, shards):
    options = {"rule": Adam(0.02), "servers": comm.size - 2, "deterministic": True}
    unbroken, whole = run(shared_path, "cpu", **options)
    before, after = ({"kind": "cuda", "shards": each} for each in shards)
    _, first = run(shared_path, before, **options | {"steps": 12, "name": "broken"})
    received = []
    receive = ShardOnDevice.receive_chunk
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            ShardOnDevice, "receive_chunk", lambda *each: (received.append(each[0].range.size), receive(*each))[1]
        )
        resumed, second = run(shared_path, after, **options, name="broken", resume=True)
    server = 1 <= comm.rank <= comm.size - 2
    assert bool([size for size in received if size > 1]) == (server and shards[1])
    assert first["samples"] < second["samples"] == whole["samples"]
    if comm.rank > comm.size - 2:
        np.testing.assert_allclose(resumed.parameters, unbroken.parameters, rtol=1e-9, atol=1e-12)


@STAND_IN
def test_a_gpu_that_is_missing_ends_all_ranks_alike(comm, shared_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.fake(devices=0))
    with pytest.raises(mpidl.UsageError, match=r"^device.kind: 'cuda', but no GPU that CuPy can use: cudaErrorNo"):
        run(shared_path, "cuda", algorithm=Sync())


@THREE
@STAND_IN
def test_where_no_gpu_works_shards_stay_on_the_host_and_the_run_says_so(comm, shared_path, monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.fake(devices=0))
    monkeypatch.setattr("mpidl.device.GPU_FILES", ("/dev/null",))
    run(shared_path, {"kind": "auto", "shards": True, "transfer": "direct"}, steps=3)
    comm.Barrier()
    if comm.rank == 0:
        place = "the CPU (no GPU that CuPy can use: cudaErrorNoDevice: no CUDA-capable device is detected)"
        assert devices(shared_path / "auto") == [(place, "workers", comm.size - 2), (place, "servers", 1)]
        assert f"computing on {place}; shards on {place}" in " ".join(capfd.readouterr().err.split())


@THREE
@STAND_IN
def test_what_an_mpi_cannot_do_is_refused_in_one_line(comm, shared_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.fake())
    monkeypatch.setattr(staging, "cuda_aware", lambda: False)
    with pytest.raises(
        mpidl.UsageError, match=r"^device.transfer: 'direct', but this MPI library isn't CUDA-aware; exp"
    ):
        run(shared_path, {"kind": "cuda", "transfer": "direct"})


def test_shards_on_gpus_need_servers(comm, shared_path):
    with pytest.raises(mpidl.UsageError, match=r"^device.shards: true, but sync has no servers$"):
        run(shared_path, {"kind": "auto", "shards": True}, algorithm=Sync())
    if comm.size == 1:
        with pytest.raises(mpidl.UsageError, match=r"^device.shards: true is for servers on ranks of their own, and"):
            run(shared_path, {"kind": "auto", "shards": True})


@THREE
@STAND_IN
def test_shards_of_a_model_of_ones_own_may_lie_on_gpus(comm, shared_path, monkeypatch, tally):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy.fake())
    model, split = tally()
    mpidl.train(
        model, dataset(split), rule=Sgd(1.0), epochs=2, dir=str(shared_path), device={"kind": "auto", "shards": True}
    )
    if comm.rank > 1:
        assert np.array_equal(model.parameters, -model.total(101, 2))


def test_models_of_ones_own_compute_where_they_like(comm, shared_path, monkeypatch, least_squares):
    model, split = least_squares()
    with pytest.raises(mpidl.UsageError, match=r"^device.kind: 'cuda' is for \[\[model.layer\]\]"):
        mpidl.train(model, dataset(split), algorithm=Sync(), steps=1, dir=str(shared_path), device="cuda")
