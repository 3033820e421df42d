"""The keys of summaries: those of real runs are the typed and described ones."""

import inspect
import json
import re
from itertools import product
from pathlib import Path

import msgspec
import numpy as np
import pytest

import mpidl
from mpidl.config import from_dict
from mpidl.engines.totals import Shares, Timing
from mpidl.metrics import METRICS
from mpidl.nn import Dense, Flatten, MeanSquaredError, Network, SparseEmbedding
from mpidl.report.reporter import ITERATION
from mpidl.report.summary import EvaluatedFigures, LastIteration
from mpidl.runs.simulate import simulate
from mpidl.shards.staleness import Staleness

FIGURES = {f"{split}_{name}" for split, name in product(("validation", "test"), ("loss", "accuracy", *METRICS))}
#: A job on a virtual cluster whose ranks fail, and whose replicas have data of their own.
FAILING = {
    "run": {"epochs": 3}, "data": {"source": "digits", "split": "label:3"},
    "model": {"layer": [{"type": "dense", "units": 10}]}, "checkpoint": {"every": 5.0},
    "virtual": {"compute": 1.0, "failures": "exponential:100", "restart": 3.0},
}  # fmt: skip

STOPPING = {
    "run": {"epochs": 1}, "data": {"source": "digits"}, "model": FAILING["model"],
    "algorithm": {"name": "ringmaster", "max_delay": 1}, "virtual": {"compute": "exponential:1"},
}  # fmt: skip


def digits():
    return Network([Dense(10)], (8, 8))


def regression():
    return Network([Dense(1)], (4,), loss=MeanSquaredError())


def table():
    return Network([SparseEmbedding(2, 9), Flatten(), Dense(1)], (4,), loss=MeanSquaredError())


def numbers(samples=40):
    given = np.arange(4 * samples).reshape(-1, 4) % 9
    pair = given, given.sum(axis=1, keepdims=True) / 36
    return mpidl.Arrays(pair, pair, validation=pair)


def own_loop(replica):
    for inputs, _ in replica.batches():
        replica.step(0.0, gradient=np.zeros(2))
        replica.log(size=len(inputs))


class Bare:
    def __init__(self):
        self.parameters = np.zeros(2)


def trained(model, data, **options):
    return lambda: mpidl.train(model(), data, steps=3, batch=8, **options)


def of_metrics(*names):
    return names, {f"{split}_{name}" for split in ("validation", "test") for name in names}


VALIDATED = {"validation_loss", "validation_accuracy", "best_epoch"}
RATES, OF_RATES = of_metrics("f1", "auc", "top5_accuracy")
ERRORS, OF_ERRORS = of_metrics("r2", "mean_squared_error", "mean_absolute_error")
#: Runs, and the keys beyond those of every run.
RUNS = {
    "plain": (trained(digits, mpidl.Digits()), set()),
    "rates": (
        trained(digits, mpidl.Digits(), validation=0.1, metrics=RATES, target="accuracy > 0.99"),
        VALIDATED | OF_RATES | {"best_validation_accuracy"},
    ),
    "errors": (
        trained(regression, numbers(), metrics=ERRORS, rule=mpidl.Sgd(1e-3)),
        VALIDATED | OF_ERRORS | {"best_validation_loss"},
    ),
    "iterations": (trained(digits, mpidl.Digits(), algorithm="sandblaster"), {"gradient_norm", "iteration"}),
    "tables": (
        trained(table, numbers()),
        VALIDATED | {"best_validation_loss", "rows", "rows_new", "rows_admitted", "rows_evicted"},
    ),
    "loop": (lambda: mpidl.loop(own_loop, Bare(), mpidl.Digits(), steps=3), {"logged"}),
    "virtual": (
        lambda: simulate(from_dict(FAILING), 4),
        {"goodput", "samples_again", "restarts", "owner_samples"},
    ),
    "stopping": (lambda: simulate(from_dict(STOPPING), 4), {"gradients_stopped", "seconds_saved"}),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_has_the_keys_of_every_run_and_its_own(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    run, own = RUNS[name]
    summary = run()
    assert summary.keys() == mpidl.Summary.__required_keys__ | own
    written = json.loads((Path(summary["run_dir"]) / "summary.json").read_text())
    assert written.keys() == summary.keys()
    assert msgspec.to_builtins(msgspec.convert(written, mpidl.Summary)) == written


def test_no_other_key_is_typed():
    """Whatever figure a target names is that of the best checkpoint."""
    seen = {key for _, own in RUNS.values() for key in own} | FIGURES | {f"best_{figure}" for figure in FIGURES}
    assert seen | mpidl.Summary.__required_keys__ == mpidl.Summary.__annotations__.keys()
    assert LastIteration.__annotations__.keys() == set(ITERATION)
    assert EvaluatedFigures.__annotations__.keys() == FIGURES - {"test_loss", "test_accuracy"}


@pytest.mark.parametrize("kind", [mpidl.Summary, mpidl.EvaluationSummary, LastIteration, Shares, Timing, Staleness])
def test_every_key_is_described(kind):
    inherited = EvaluatedFigures.__annotations__.keys() if kind is mpidl.EvaluationSummary else set()
    described = re.findall(r"^([\w, ]+) : ", inspect.getdoc(kind), re.MULTILINE)
    assert {name for names in described for name in names.split(", ")} == kind.__annotations__.keys() - inherited


def test_an_evaluation_has_the_keys_of_every_evaluation_and_figures(tmp_path):
    mpidl.train(digits(), mpidl.Digits(), steps=1, validation=0.1, dir=tmp_path)
    found = mpidl.evaluate(tmp_path / "run", digits(), mpidl.Digits())
    figures = {f"{split}_{name}" for split in ("validation", "test") for name in ("loss", "accuracy")}
    assert found.keys() == mpidl.EvaluationSummary.__required_keys__ | figures
    assert msgspec.to_builtins(msgspec.convert(found, mpidl.EvaluationSummary)) == found
