"""A model whose initial values differ from rank to rank, and what replicas keep beside the parameters."""

import numpy as np
import pytest

import mpidl
from beside import Beside
from cut_layouts import in_layout, tensors_of
from mpidl.parameters import Box, Layout, Range, shards
from mpidl.runs import common_values
from mpidl.storage.checkpoint import Checkpoint

pytestmark = pytest.mark.mpi


def data():
    random = np.random.default_rng(0)
    x = random.normal(size=(96, 2)).astype(np.float32)
    return mpidl.Arrays((x, np.arange(96) % 3), (x[:16], np.arange(16) % 3)).open()


def train(model, path, **options):
    rule = options.get("algorithm", mpidl.Downpour()).default_rule and mpidl.Sgd(0.01)
    options = {"batch": 4, "rule": rule, "deterministic": True, "dir": path} | options
    mpidl.train(model, data(), **options)
    return model


def different(rank):
    """Return a model whose values are the rank's own."""
    model = Beside(scale=(1.0 + rank, 2.0), seen=np.array(10 * rank))
    model.parameters += rank
    return model


@pytest.mark.usefixtures("worker")
def test_all_ranks_take_the_values_of_the_first(comm, shared_path, capfd, monkeypatch):
    monkeypatch.setattr(common_values, "PIECE", 16)
    same = train(different(0), shared_path, name="same", steps=24)
    assert "differ" not in comm.bcast(capfd.readouterr().err)
    other = train(different(comm.rank), shared_path, name="other", steps=24)
    np.testing.assert_array_equal(other.parameters, same.parameters)
    np.testing.assert_array_equal(other.scale, same.scale)
    assert len(set(comm.allgather(int(other.seen)))) == 1
    assert other.seen > 0
    if comm.size > 1:
        line = (
            "mpidl: the model's initial parameters and constants and buffers differ from rank to rank (no seed set?); "
            "all ranks take those of rank 0"
        )
        found = "".join(comm.allgather(capfd.readouterr().err))
        assert [each for each in found.splitlines() if "differ" in each] == [line]
    for name in ("same", "other"):
        saved = Checkpoint(shared_path / name / "checkpoints" / "0")
        assert saved.kept_by(0, "buffers") == {"block/seen": 0}


@pytest.mark.parametrize("algorithm", [mpidl.Downpour(), mpidl.algorithms.Averaging(), mpidl.Sandblaster()])
def test_a_network_continues_from_the_values_of_the_first_rank(comm, shared_path, capfd, algorithm):
    if comm.size == 2 and algorithm.name != "averaging":
        pytest.skip("2 ranks have no worker beside a server")
    network, whole = mpidl.Network([mpidl.Dense(3)], (2,)), Range(0, 9)
    for name, changed in (("first", False), ("second", False), ("third", True)):
        if changed and comm.rank == 0:
            network.parameters += 1
        before = comm.bcast(network.initial(whole))
        options = {"name": name, "steps": 3, "deterministic": algorithm.name != "sandblaster"}
        train(network, shared_path, algorithm=algorithm, **options)
        checkpoint = Checkpoint(shared_path / name / "checkpoints" / "0")
        np.testing.assert_array_equal(checkpoint.read("parameters", whole), before)
        assert len(set(comm.allgather(network.parameters.tobytes()))) == 1
        found = "".join(comm.allgather(capfd.readouterr().err))
        assert ("initial parameters differ" in found) == (changed and comm.size > 1)


@pytest.mark.parametrize("algorithm", [mpidl.Downpour(n_push=2), mpidl.algorithms.Averaging(tau=3, rate=0.01)])
def test_a_resumed_run_goes_on_with_every_replicas_buffers(comm, shared_path, algorithm):
    if comm.size == 2 and algorithm.name == "downpour":
        pytest.skip("2 ranks have no worker beside a server")

    def run(name, steps, **options):
        train(Beside(), shared_path, algorithm=algorithm, name=name, steps=steps, **options)
        path = shared_path / name / "checkpoints"
        return Checkpoint(max(path.iterdir(), key=lambda each: int(each.name)))

    steps = 24 * max(1, comm.size - 1)
    through = run("through", 2 * steps)
    run("struck", steps)
    resumed = run("struck", 2 * steps, resume=True)
    assert resumed.position.step == through.position.step
    whole = mpidl.parameters.Range(0, through.size)
    np.testing.assert_array_equal(resumed.read("parameters", whole), through.read("parameters", whole))
    replicas = range(len(through.position.replicas))
    again, kept = ([saved.kept_by(number, "buffers") for number in replicas] for saved in (resumed, through))
    assert again == kept
    assert sum(int(each["block/seen"]) for each in kept) == through.position.step


@pytest.mark.mpi(min_size=4)
def test_other_replicas_all_take_the_buffers_of_the_first(comm, shared_path):
    train(Beside(), shared_path, steps=24)
    first = Checkpoint(shared_path / "run" / "checkpoints" / "24").kept_by(0, "buffers")["block/seen"]
    # A server more and so a worker less.
    train(Beside(), shared_path, steps=48, servers=2, resume=True)
    assert Checkpoint(shared_path / "run" / "checkpoints" / "48").kept_by(0, "buffers")["block/seen"] == first + 24


def test_every_rank_gets_the_trained_tensors_of_the_ranks_of_a_replica(comm):
    network = mpidl.Network([mpidl.Dense(6)], (4,), seed=comm.rank)
    shapes, column = network.layout.shapes, [Box((Range(0, 4), Range(3 * i, 3 * i + 3))) for i in range(2)]
    pieces = [("0-dense/weight", column[1]), ("0-dense/bias", Box.whole((6,))), ("0-dense/weight", column[0])]
    tensors = tensors_of(shapes)
    for layout in (Layout(shapes.items(), pieces), network.layout):
        vector = in_layout(tensors, layout)
        held = list(enumerate(shards(layout.size, comm.size)))
        network.parameters[:] = -1
        common_values.share_trained(comm, network, layout, held, vector[slice(*held[comm.rank][1])])
        assert network.parameters.tolist() == in_layout(tensors, network.layout).tolist()
