"""Networks with tables on ranks: the same bits as dense ones, and each push once."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from counted_rows import Counting, counts_of

import mpidl
from mpidl import Adagrad, Downpour, Sgd
from mpidl.algorithms import Adag, Agn, BackupSync, Dcasgd, Easgd, Softsync, Ssp
from mpidl.data import ArraySplit, Dataset
from mpidl.nn import Dense, Embedding, Flatten, MeanSquaredError, Network, SparseEmbedding
from mpidl.sparse.server_tables import OPEN, OPEN_IDS
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.checkpoints import newest_good
from mpidl.storage.table_files import BY_ROW, COUNTS, TOUCHES, saved_tables
from mpidl.tables.rows import InitialRows

pytestmark = pytest.mark.mpi(min_size=3)
ROWS, SIZE, SEED = 50, 3, 7


def network(layer):
    return Network([layer, Flatten(), Dense(1)], (4,), loss=MeanSquaredError(), dtype="float64", seed=SEED)


def pair():
    """Return a network with a table, and one with an embedding that has the table's first values."""
    sparse = network(SparseEmbedding(SIZE, ROWS, scale=0.5))
    dense = network(Embedding(ROWS, SIZE))
    views, own = dense.layout.views(dense.parameters), sparse.layout.views(sparse.parameters)
    ids = np.arange(ROWS)
    InitialRows(sparse.tables[0], SEED).write(ids, np.zeros_like(ids), views["0-embedding/weight"])
    for name, values in own.items():
        views[name][...] = values
    return sparse, dense


def data(samples=101):
    generator = np.random.default_rng(0)
    ids = generator.zipf(1.5, (samples, 4)) % ROWS
    return Dataset("ids", (4,), None, *2 * [ArraySplit(ids, generator.normal(size=(samples, 1)))])


def ids_of(dataset):
    return dataset.train.gather(np.arange(dataset.train.samples)).inputs.astype(np.int64)


def rows_of(summary):
    """Return the rows of a run's table in its last checkpoint, by their ids."""
    path, _ = newest_good(Path(summary["run_dir"]))
    saved = saved_tables(Checkpoint(path))["0-embedding"]
    return dict(zip(saved.read("ids").tolist(), saved.read("rows"), strict=True))


def run(model, path, **options):
    return mpidl.train(model, data(), epochs=2, batch=8, seed=SEED, dir=str(path), **options)


@pytest.mark.parametrize("rule", [Sgd(0.05), Adagrad(0.05)])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_table_has_the_bits_of_a_dense_embedding(comm, shared_path, rule, workers):
    servers = comm.size - 1 - workers
    if servers < 1:
        pytest.skip("too few ranks")
    algorithm = Downpour() if workers == 1 else BackupSync(backup=0)
    sparse, dense = pair()
    options = {"servers": servers, "algorithm": algorithm, "rule": rule, "deterministic": workers > 1}
    summary = run(sparse, shared_path / "sparse", **options)
    run(dense, shared_path / "dense", **options)
    views, own = dense.layout.views(dense.parameters), sparse.layout.views(sparse.parameters)
    for name, values in own.items():
        assert np.array_equal(values, views[name]), name
    rows, touched = rows_of(summary), np.unique(ids_of(data()))
    assert sorted(rows) == touched.tolist()
    assert np.array_equal(np.array([rows[id] for id in touched.tolist()]), views["0-embedding/weight"][touched])
    assert (summary["rows"], summary["rows_evicted"]) == (touched.size, 0)
    assert summary["rows_new"] == summary["rows_admitted"] == touched.size


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"transport": "messages"},
        {"algorithm": Downpour(n_push=3)},
        {"algorithm": Downpour(n_push=3), "transport": "messages", "tables": {"prefetch": 3}},
    ],
)
def test_every_id_is_counted_once(comm, shared_path, options):
    extremes = [-(2**63), 2**63 - 1, 0, -1]
    ids = np.random.default_rng(0).choice([*extremes, *range(30)], (500, 3))
    split = ArraySplit(ids, np.zeros((500, 1)))
    summary = mpidl.train(
        Counting(), Dataset("ids", (3,), None, split, split), epochs=3, batch=8, dir=str(shared_path), rule=Sgd(1.0),
        **options,
    )  # fmt: skip
    found, counts = np.unique(ids, return_counts=True)
    assert counts_of(summary) == dict(zip(found.tolist(), (3 * counts).tolist(), strict=True))


class Mistaken(Counting):
    """A model that announces lookups which it doesn't make, before the one that it makes."""

    def wanted(self, batch):
        made = self.made(batch)
        return [made._replace(ids=made.ids + 1000), made]


def test_rows_are_those_that_are_looked_up(comm, shared_path):
    ids = np.random.default_rng(0).choice(30, (200, 3))
    data = Dataset("ids", (3,), None, ArraySplit(ids, np.zeros((200, 1))))
    summary = mpidl.train(Mistaken(), data, batch=8, dir=str(shared_path), rule=Sgd(1.0), tables={"prefetch": 1})
    found, counts = np.unique(ids, return_counts=True)
    epochs = summary["samples"] // 200
    assert counts_of(summary) == dict(zip(found.tolist(), (epochs * counts).tolist(), strict=True))


@pytest.mark.parametrize("wire", ["bf16", "int8"])
def test_encoded_rows(comm, shared_path, wire):
    sparse, plain = pair()[0], pair()[0]
    options = {"deterministic": True, "rule": Sgd(0.05)}
    summary = run(sparse, shared_path / wire, algorithm=Downpour(wire=wire, wire_fetch=wire), **options)
    before = run(plain, shared_path / "plain", algorithm=Downpour(), **options)
    assert summary["bytes_pushed"] < 0.7 * before["bytes_pushed"]
    assert summary["bytes_fetched"] < 0.8 * before["bytes_fetched"]
    exact, found = rows_of(before), rows_of(summary)
    assert found.keys() == exact.keys()
    assert 0 < max(abs(found[id] - row).max() for id, row in exact.items()) < 0.02


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize(
    "algorithm",
    [
        Ssp(bound=1),
        Softsync(modulate=False),
        Dcasgd(),
        Adag(rate=0.1, window=2),
        Agn(rate=0.1, window=3),
        Easgd(rate=0.1),
    ],
    ids=lambda each: each.name,
)
def test_every_algorithm_pushes_rows(comm, shared_path, algorithm):
    ids = np.random.default_rng(0).choice(30, (200, 3))
    split = ArraySplit(ids, np.zeros((200, 1)))
    rule = None if algorithm.default_rule is None else Adagrad(0.1)
    tables = {"rule": "sgd", "rate": 2.0 if algorithm.name == "softsync" else 1.0}
    summary = mpidl.train(
        Counting(), Dataset("ids", (3,), None, split, split), epochs=2, batch=8, dir=str(shared_path),
        algorithm=algorithm, rule=rule, tables=tables,
    )  # fmt: skip
    found, counts = np.unique(ids, return_counts=True)
    assert counts_of(summary) == dict(zip(found.tolist(), (2 * counts).tolist(), strict=True))


def test_bytes_are_those_of_distinct_rows(comm, shared_path):
    ids = np.random.default_rng(0).choice(5000, (2000, 3))
    data = Dataset("ids", (3,), None, ArraySplit(ids, np.zeros((2000, 1))))
    summary = mpidl.train(Counting(), data, epochs=3, batch=2000, dir=str(shared_path), rule=Sgd(1.0))
    of_rows = np.unique(ids).size * (8 + 2 * 8)
    assert (summary["pushes"], summary["fetches"]) == (3, 3)
    for key in ("bytes_pushed", "bytes_fetched"):
        assert 1 <= (summary[key] - 3 * 8) / (3 * of_rows) <= 1.05


FOUR = pytest.mark.mpi(min_size=4)

#: Arrays of a server's part of a table, beside the rows.
OTHERS = (COUNTS, TOUCHES, *OPEN)


def train(path, name, **options):
    generator = np.random.default_rng(0)
    ids = generator.zipf(1.2, (120, 4)) % 97
    split = ArraySplit(ids, generator.normal(size=(len(ids), 1)))
    layers = [SparseEmbedding(3, scale=0.5), Flatten(), Dense(1)]
    model = Network(layers, (4,), loss=MeanSquaredError(), dtype="float64", seed=7)
    data = Dataset("ids", (4,), None, split, split)
    mpidl.train(
        model, data, epochs=3, batch=4, seed=7, dir=str(path), name=name, checkpoint_every=0.03, keep=100,
        debug={"gradient_seconds": 0.006}, **options,
    )  # fmt: skip
    return model.parameters.copy()


def checkpoints(path, name):
    found = (path / name / "checkpoints").iterdir()
    return [Checkpoint(each) for each in sorted(found, key=lambda each: int(each.name))]


def struck(comm, path, waits):
    """Leave, in a run of another name, a checkpoint from before its end: if possible, with gradients that wait."""
    before = checkpoints(path, "whole")[1:-1]
    found = [each for each in before if waits(each)] or before
    assert found, "no checkpoint between the first and the last"
    if comm.rank == 0:
        chosen = found[len(found) // 2].path
        shutil.copytree(chosen, path / "struck" / "checkpoints" / chosen.name)
    comm.Barrier()


def unpushed(checkpoint):
    return any(each.unpushed for each in checkpoint.position.replicas)


def arrays(checkpoint):
    """Return the arrays of all servers' parts of the table."""
    (table,) = saved_tables(checkpoint).values()
    others = {(n, name): part.read(name) for n, part in enumerate(table.parts) for name in OTHERS if name in part}
    return {name: table.read(name) for name in BY_ROW} | others


@FOUR
@pytest.mark.parametrize(
    ("algorithm", "rule", "tables"),
    [
        (Downpour(n_push=5), Sgd(0.05), {"max_rows": 20, "max_age": 9, "admission": 0.5}),
        (Softsync(), Adagrad(0.05), {"max_rows": 20, "admission": 2}),
    ],
)
def test_a_run_goes_on_with_the_same_bits(comm, shared_path, algorithm, rule, tables):
    """With one worker, which has gradients that have not been pushed, or with several."""
    several = isinstance(algorithm, Softsync)
    options = {
        "algorithm": algorithm, "rule": rule, "tables": tables, "deterministic": several,
        "servers": 1 if several else comm.size - 2,
    }  # fmt: skip

    whole = train(shared_path, "whole", **options)
    struck(comm, shared_path, (lambda checkpoint: True) if several else unpushed)
    assert np.array_equal(train(shared_path, "struck", resume=True, **options), whole)
    expected, found = (arrays(checkpoints(shared_path, name)[-1]) for name in ("whole", "struck"))
    assert expected.keys() == found.keys()
    assert all(np.array_equal(values, found[name]) for name, values in expected.items())
    assert expected[0, COUNTS][3] > 0, "no row has been evicted"


@FOUR
def test_a_run_goes_on_with_another_number_of_servers(comm, shared_path):
    options = {"algorithm": Downpour(n_push=3), "rule": Adagrad(0.05)}
    train(shared_path, "whole", servers=2, **options)
    struck(comm, shared_path, unpushed)
    fewer = comm.Split(0 if comm.rank < 3 else 1)
    if comm.rank < 3:
        train(shared_path, "struck", servers=1, resume=True, comm=fewer, **options)
    comm.Barrier()
    fewer.Free()
    rows = []
    for name in ("whole", "struck"):
        saved = saved_tables(checkpoints(shared_path, name)[-1])["0-embedding"]
        order = np.argsort(saved.read("ids"))
        rows.append([saved.read(array)[order] for array in ("ids", "rows", "state", "uses")])
    for one, other in zip(*rows, strict=True):
        assert np.array_equal(one, other)


@FOUR
def test_gradients_that_a_server_has_gathered_go_on(comm, shared_path):
    """The mean of two pushes, at a rate of 2, is their sum."""
    ids = np.random.default_rng(0).choice(20, (240, 3))
    split = ArraySplit(ids, np.zeros((len(ids), 1)))

    def count(name, **options):
        return mpidl.train(
            Counting(), Dataset("ids", (3,), None, split, split), epochs=3, batch=4, dir=str(shared_path), name=name,
            algorithm=Softsync(modulate=False), rule=Sgd(2.0), servers=comm.size - 3, checkpoint_every=0.03, keep=100,
            debug={"gradient_seconds": 0.003}, **options,
        )  # fmt: skip

    expected = dict(enumerate((3 * np.bincount(ids.reshape(-1))).tolist()))
    assert counts_of(count("whole")) == expected
    struck(comm, shared_path, lambda checkpoint: (0, OPEN_IDS) in arrays(checkpoint))
    assert counts_of(count("struck", resume=True)) == expected
