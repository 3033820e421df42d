"""Figures that ranks add up, the best checkpoint, and runs that evaluations end, on real ranks."""

import json

import numpy as np
import pytest

import mpidl
from mpidl.algorithms import Downpour, Hogwild, Sandblaster, Sync
from mpidl.data import Arrays, Dataset
from mpidl.errors import UsageError
from mpidl.metrics import METRICS
from mpidl.metrics.figures import Figures
from mpidl.nn import Dense, Network
from mpidl.nn.model import evaluate_split
from mpidl.rules import Sgd
from mpidl.storage.checkpoints import read_best

pytestmark = pytest.mark.mpi(min_size=4)
NAMES = ("f1", "auc", "mean_absolute_error")


def classes(samples, seed):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, samples)
    return random.normal(np.eye(3)[labels], 0.5).astype(np.float32), labels


DATA = Arrays(classes(240, 0), classes(61, 1), validation=classes(53, 2)).open()


def figures_of(network, split):
    """Evaluate all of a split at once."""
    figures = Figures([METRICS[name]() for name in NAMES], 3)
    return figures.values(evaluate_split(network, split, 0, split.samples, figures))


@pytest.mark.parametrize("algorithm", [Downpour(), Sync(), Hogwild(), Sandblaster()], ids=lambda each: each.name)
def test_the_figures_of_all_ranks_are_those_of_all_samples(comm, tmp_path, algorithm):
    network, run = Network([Dense(3)], (3,)), comm.bcast(tmp_path) / "run"
    rule = {} if algorithm.coordinated else {"rule": Sgd(0.1)}
    summary = mpidl.train(
        network, DATA, algorithm=algorithm, metrics=NAMES, epochs=4, batch=20, dir=run.parent, device="cpu", **rule
    )
    expected = {
        f"{name}_{figure}": value
        for name, split in (("test", DATA.test), ("validation", DATA.validation))
        for figure, value in figures_of(network, split).items()
    }
    assert {name: summary[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    assert expected["test_auc"] > 0.6
    if comm.rank == 0:
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        evaluated = [record for record in records[:-1] if record["validation_loss"] is not None]
        assert evaluated
        assert all(record["validation_f1"] > 0 for record in evaluated)
        assert all(record["test_loss"] is None for record in evaluated)
        best = read_best(run)
        assert (best.step, best.epoch, best.value) == tuple(
            summary[name] for name in ("best_step", "best_epoch", "best_validation_loss")
        )
        assert best.value <= min(record["validation_loss"] for record in records if record["validation_loss"])
        found = mpidl.evaluate(run, network, DATA, step="best")
        assert found["step"] == best.step


@pytest.mark.parametrize("algorithm", [Downpour(), Sync()], ids=lambda each: each.name)
def test_patience_ends_the_run_of_all_ranks(comm, tmp_path, algorithm):
    summary = mpidl.train(
        Network([Dense(3)], (3,)), DATA, algorithm=algorithm, rule=Sgd(1e-30), patience=2, epochs=200, batch=20, keep=1,
        dir=comm.bcast(tmp_path), device="cpu",
    )  # fmt: skip
    assert summary["stopped"].startswith("the validation loss has not improved on ")
    assert 3 <= summary["epochs"] < 100
    assert summary["best_epoch"] < 3


def test_a_model_without_outputs_is_refused_on_all_ranks(comm, tmp_path, tally):
    model, split = tally()
    data = Dataset("test", (1,), None, split, split)
    with pytest.raises(UsageError, match=r"run\.metrics: r2: evaluate\(batch\) of the model returns no outputs"):
        mpidl.train(model, data, metrics=["r2"], dir=comm.bcast(tmp_path))
    assert not list(tmp_path.iterdir())
