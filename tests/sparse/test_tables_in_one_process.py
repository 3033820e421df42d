"""Models with tables trained in one process, and on a virtual cluster from a configuration."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

import mpidl
from mpidl import Adagrad, Adam, Downpour, Sgd
from mpidl.data import ArraySplit, Dataset
from mpidl.nn import Dense, Embedding, Flatten, MeanSquaredError, Network, SparseEmbedding
from mpidl.runs import one_process
from mpidl.runs.load import export
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.checkpoints import newest_good
from mpidl.storage.files import Base
from mpidl.storage.table_files import saved_tables
from mpidl.tables.sources import FirstRows

ROWS, SIZE, SEED = 50, 3, 7


def network(layer):
    return Network([layer, Flatten(), Dense(1)], (4,), loss=MeanSquaredError(), dtype="float64", seed=SEED)


def sparse(rows=ROWS):
    return network(SparseEmbedding(SIZE, rows, scale=0.5))


def data(samples=101):
    generator = np.random.default_rng(0)
    ids = generator.zipf(1.5, (samples, 4)) % ROWS
    return Dataset("ids", (4,), None, *2 * [ArraySplit(ids, np.sin(ids).sum(axis=1, keepdims=True))])


def run(model, path, name="run", epochs=4, **options):
    return mpidl.train(model, data(), epochs=epochs, batch=8, seed=SEED, dir=str(path), name=name, **options)


def rows_of(summary):
    """Return the arrays of a run's table in its last checkpoint, in the order of their ids."""
    saved = saved_tables(Checkpoint(newest_good(Path(summary["run_dir"]))[0]))["0-embedding"]
    order = np.argsort(saved.read("ids"))
    return [saved.read(name)[order] for name in ("ids", "rows", "state", "uses")]


@pytest.mark.parametrize("servers", [1, 2])
def test_a_run_in_one_process_is_the_dense_one_and_evaluates_the_trained_rows(tmp_path, servers):
    model, dense = sparse(), network(Embedding(ROWS, SIZE))
    views = dense.layout.views(dense.parameters)
    for name, values in model.layout.views(model.parameters).items():
        views[name][...] = values
    views["0-embedding/weight"][...] = FirstRows(model.tables, SEED, "float64").look_up(0, np.arange(ROWS)).rows
    options = {"rule": Adagrad(0.05), "servers": servers}
    found, expected = run(model, tmp_path / "sparse", **options), run(dense, tmp_path / "dense", **options)
    assert found["test_loss"] == expected["test_loss"] < 0.9
    assert np.array_equal(model.parameters, dense.parameters[-model.parameters.size :])
    ids, rows, _, uses = rows_of(found)
    assert np.array_equal(rows, views["0-embedding/weight"][ids])
    assert uses[:, 0].max() == 52
    # The model goes on with the trained rows.
    batch = data().as_integers().as_double().train.gather(np.arange(5))
    assert model.evaluate(batch).loss == dense.evaluate(batch).loss


@pytest.mark.parametrize(
    ("algorithm", "rule"), [(Downpour(n_push=5), Adam(0.01)), (Downpour(n_fetch=3, n_push=3, rate=0.01), Sgd(0.1))]
)
def test_a_resumed_run_goes_on_with_the_same_bits(tmp_path, monkeypatch, algorithm, rule):
    """It is interrupted between two pushes: the checkpoint has the gradients of rows that haven't been pushed.

    Of other rows, it has those that were used since the first checkpoint.
    """
    monkeypatch.setattr(one_process, "LOOK_EVERY", 0.0)
    options = {"algorithm": algorithm, "rule": rule, "servers": 2, "deterministic": True, "report": 1e-6}
    options["full_every"] = 3
    expected = rows_of(run(sparse(), tmp_path, "whole", **options))

    def interrupt(record):
        if record["samples"] >= 22 * 8:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit, match="75"):
        run(sparse(), tmp_path, callbacks=[interrupt], **options)
    checkpoint = Checkpoint(newest_good(tmp_path / "run")[0])
    assert checkpoint.position.replicas[0].unpushed
    assert [Base.of(path).step for path in checkpoint.shards] == [0, 0]
    found = rows_of(run(sparse(), tmp_path, resume=True, **options))
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("evaluated", [False, True])
def test_a_second_training_goes_on_with_the_rows_of_the_first(tmp_path, evaluated):
    """They are in memory, or in the checkpoint of an evaluation."""
    model = sparse()
    first = run(model, tmp_path, "first", servers=2)
    if evaluated:
        mpidl.evaluate(tmp_path / "first", model, data())
    second = run(model, tmp_path, "second", servers=3, rule=Sgd(1e-12), epochs=1)
    (ids, rows, *_), (found, own, *_) = rows_of(first), rows_of(second)
    assert np.array_equal(ids, found)
    np.testing.assert_allclose(own, rows, rtol=0, atol=1e-9)
    assert second["test_loss"] == pytest.approx(first["test_loss"], rel=1e-6)
    run(model, tmp_path, "drawn", rule=Sgd(1e-12), epochs=1, tables={"first_values": "drawn"})
    assert not np.allclose(rows_of({"run_dir": tmp_path / "drawn"})[1], rows, atol=1e-3)


def test_a_network_begins_with_the_rows_of_an_export(tmp_path):
    first = run(sparse(), tmp_path, "first", servers=2)
    ids, rows, *_ = rows_of(first)
    for kind in ("npz", "torch"):
        file = tmp_path / f"model.{'pt' if kind == 'torch' else kind}"
        export(tmp_path / "first", kind, file=file)
        found, own, *_ = rows_of(run(sparse(), tmp_path, kind, rule=Sgd(1e-12), epochs=1, initial=str(file)))
        np.testing.assert_allclose(own[np.isin(found, ids)], rows, rtol=0, atol=1e-9)


def test_rows_are_evicted_and_counted(tmp_path):
    model = sparse("any")
    summary = run(model, tmp_path, tables={"max_rows": 10, "admission": 2}, report=1e-3)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    names = ("rows", "rows_new", "rows_admitted", "rows_evicted")
    assert {name: summary[name] for name in names} == {name: records[-1][name] for name in names}
    assert summary["rows"] == len(rows_of(summary)[0]) == 10
    assert summary["rows_new"] > summary["rows_admitted"] == 10 + summary["rows_evicted"] > 20
    assert "rows" not in run(network(Dense(2)), tmp_path, "dense")
