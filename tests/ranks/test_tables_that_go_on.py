"""Runs with tables that are resumed on ranks: from any checkpoint they end as if they had never stopped."""

import shutil

import numpy as np
import pytest
from counted_rows import Counting, counts_of

import mpidl
from mpidl import Adagrad, Downpour, Sgd
from mpidl.algorithms import Softsync
from mpidl.data import ArraySplit, Dataset
from mpidl.nn import Dense, Flatten, MeanSquaredError, Network, SparseEmbedding
from mpidl.sparse.server_tables import OPEN, OPEN_IDS
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.table_files import BY_ROW, COUNTS, TOUCHES, saved_tables

pytestmark = pytest.mark.mpi(min_size=4)

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
