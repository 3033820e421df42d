"""Models whose tables are in a checkpoint: what is loaded, predicted, evaluated and exported."""

from functools import partial

import h5py
import numpy as np
import pytest

import mpidl
from mpidl.config import from_dict
from mpidl.data.dataset import ArraySplit
from mpidl.errors import MpidlError, UsageError
from mpidl.job.build import build_network
from mpidl.job.checks import of_data
from mpidl.parameters import shards
from mpidl.rules import Adagrad
from mpidl.runs.evaluate import predict
from mpidl.runs.load import export
from mpidl.storage.files import scratch
from mpidl.storage.position import Position
from mpidl.storage.writer import CheckpointIndex, save_index, save_shard
from mpidl.tables.distinct import owner
from mpidl.tables.sources import TablesInMemory
from mpidl.tables.table import Table

LAYERS = [
    {"type": "embedding", "sparse": True, "dimension": 3, "rows": 50, "scale": 0.2, "table": "words"},
    {"type": "dense", "units": 7, "activation": "tanh"},
    {"type": "dense", "units": 5},
]
SEED, SERVERS = 4, 2
RANDOM = np.random.default_rng(1)
#: Half of the ids have rows.
IDS, LABELS = RANDOM.integers(0, 50, (70, 4)), RANDOM.integers(0, 5, 70)


def data():
    split = ArraySplit(IDS, LABELS)
    return mpidl.Dataset("words", (4,), 5, split, split)


def save(directory, layers, twice=None):
    """Save a run whose tables have been updated, and return its network.

    The last row of the last server may have an id that server `twice` has, too.
    """
    model = {"layer": layers, "dtype": "float64"}
    config = from_dict({"run": {"seed": SEED}, "data": {"source": "digits"}, "model": model})
    directory.mkdir()
    (directory / "config.toml").write_text(config.to_toml())
    network = build_network(config.model, (4,), SEED)
    rule, dtype = Adagrad(0.3), network.dtype
    tables = [
        [Table(spec, rule, capacity=99, seed=SEED, dtype=dtype) for _ in range(SERVERS)] for spec in network.tables
    ]
    for table in tables:
        ids = np.arange(0, 50, 2)
        own = owner(ids, SERVERS)
        for server, part in enumerate(table):
            part.update(ids[own == server], RANDOM.normal(size=((own == server).sum(), 3)), 1)
    checkpoints = directory / "checkpoints"
    checkpoints.mkdir()
    unfinished = scratch(checkpoints, 1)
    for number, own in enumerate(shards(network.layout.size, SERVERS)):
        state = {"parameters": network.parameters[own.start : own.stop], "clock": np.array(1)}
        for table in tables:
            arrays = table[number].arrays()
            if twice is not None and number == SERVERS - 1:
                arrays["ids"] = np.append(arrays["ids"][:-1], table[twice].arrays()["ids"][0])
            state |= {f"tables/{table[0].spec.name}/{name}": values for name, values in arrays.items()}
        save_shard(unfinished, number, own, state)
    described = of_data(data())
    index = CheckpointIndex(
        network.layout,
        SERVERS,
        Position(1, 70, 1.0, 1, []),
        config.to_toml(),
        "0.0.1",
        described,
        tables=network.tables,
    )
    save_index(unfinished, index)
    network.rows = TablesInMemory(tables)
    return network


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The directory of a run, and its network with the tables in memory."""
    directory = tmp_path_factory.mktemp("saved") / "run"
    return directory, save(directory, LAYERS)


def test_a_loaded_network_has_the_rows(run):
    directory, network = run
    loaded = mpidl.load(directory)
    np.testing.assert_array_equal(loaded.predict(IDS), network.predict(IDS))


def test_evaluation(run):
    directory, network = run
    batch = data().as_integers().test.gather(np.arange(70))
    found = mpidl.evaluate(directory, data=data())
    assert found["test_loss"] == pytest.approx(network.evaluate(batch).loss / 70, rel=1e-12)
    assert found["test_accuracy"] == network.evaluate(batch).correct / 70


def test_predictions(run, tmp_path):
    directory, network = run
    np.save(tmp_path / "ids.npy", IDS)
    predict(directory, str(tmp_path / "ids.npy"), tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        np.testing.assert_array_equal(file["outputs"][...], network.predict(IDS))
    np.save(tmp_path / "ids.npy", np.where(IDS == 3, 50, IDS))
    with pytest.raises(UsageError, match="table words: an id of 50, expected 0 to 49"):
        predict(directory, str(tmp_path / "ids.npy"), tmp_path / "out.h5", force=True)


def rows(network):
    """Return all rows of the network's table."""
    found = network.rows.look_up(0, np.arange(50))
    return found.rows[found.places]


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_exported_ids_and_rows(run, kind, tmp_path):
    directory, network = run
    assert export(directory, kind, file=tmp_path / "out")["tensors"] == 6
    if kind == "npz":
        found = dict(np.load(tmp_path / "out"))
    else:
        found = pytest.importorskip("safetensors.numpy").load_file(tmp_path / "out")
    ids = found.pop("words.ids")
    assert sorted(ids) == list(range(0, 50, 2))
    np.testing.assert_array_equal(found.pop("words.rows"), rows(network)[ids])
    assert found.keys() == network.layout.shapes.keys()


def test_exported_weights_of_pytorch(run, tmp_path):
    torch = pytest.importorskip("torch")

    directory, network = run
    assert export(directory, "torch", file=tmp_path / "out")["tensors"] == 5
    embedding = torch.nn.Embedding(50, 3, dtype=torch.float64)
    embedding.load_state_dict({"weight": torch.load(tmp_path / "out", weights_only=True)["words/weight"]})
    np.testing.assert_array_equal(embedding(torch.arange(50)).detach().numpy(), rows(network))


def test_exported_onnx(run, tmp_path):
    reference = pytest.importorskip("onnx.reference")

    directory, network = run
    assert export(directory, "onnx", file=tmp_path / "out")["tensors"] == 5
    (outputs,) = reference.ReferenceEvaluator(str(tmp_path / "out")).run(None, {"inputs": IDS})
    np.testing.assert_allclose(outputs, network.predict(IDS), atol=1e-12)


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ("any", "table 'words' takes any id, expected a number of rows; npz and safetensors have ids and rows$"),
        (10**12, r"^table 'words': 1,000,000,000,000 rows take 24,000[.]0 GB, this machine has .* GB of memory$"),
    ],
)
def test_weights_that_cannot_be(row, line, tmp_path):
    network = save(tmp_path / "run", [LAYERS[0] | {"rows": row}, *LAYERS[1:]])
    for kind in ("torch", "onnx"):
        with pytest.raises(UsageError, match=line):
            export(tmp_path / "run", kind)
    assert not list((tmp_path / "run").glob("model*"))
    export(tmp_path / "run", "npz")
    saved = np.load(tmp_path / "run" / "model.npz")
    np.testing.assert_array_equal(saved["words.rows"], rows(network)[saved["words.ids"]])


@pytest.mark.parametrize("server", range(SERVERS))
def test_two_rows_of_an_id_are_refused_wherever_they_are_read(server, tmp_path):
    run = tmp_path / "run"
    save(run, LAYERS, twice=server)
    np.save(tmp_path / "ids.npy", IDS)
    for read in (
        lambda: mpidl.evaluate(run, data=data()),
        lambda: predict(run, str(tmp_path / "ids.npy"), tmp_path / "out.h5"),
        lambda: mpidl.load(run),
        *(partial(export, run, kind) for kind in ("npz", "safetensors", "torch", "onnx")),
    ):
        with pytest.raises(MpidlError, match=r"run/checkpoints/1: table 'words' has two rows of an id$"):
            read()
    assert not list(run.glob("model*"))


@pytest.mark.parametrize("key", [{"mode": "sum"}, {"padding": 0}])
def test_bags_are_not_exported_as_a_layer_without_them(key, tmp_path):
    pytest.importorskip("onnx")
    save(tmp_path / "run", [LAYERS[0] | key, *LAYERS[1:]])
    with pytest.raises(UsageError, match=r"^--to onnx: layer '0-embedding': bags have no operator in ONNX$"):
        export(tmp_path / "run", "onnx")
