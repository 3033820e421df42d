"""The training loss of an epoch and of a run: of the whole epoch, whenever reports fall; or at the accepted point."""

import json

import numpy as np
import pytest

import mpidl
from mpidl.nn.losses import MeanSquaredError
from still import BATCH, DATA, SAMPLES, WHOLE, Still


def records(summary):
    with open(f"{summary['run_dir']}/metrics.jsonl") as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.parametrize("report", [1e-6, 60.0])
def test_it_is_that_of_the_whole_epoch_whenever_reports_fall(tmp_path, report):
    summary = mpidl.train(Still(), DATA, epochs=2, batch=BATCH, report=report, dir=tmp_path)
    assert summary["train_loss"] == pytest.approx(WHOLE, rel=1e-12)
    evaluated = next(each for each in records(summary) if each["test_loss"] is not None)
    losses = {each["epoch"]: each["train_loss"] for each in (evaluated, records(summary)[-1])}
    assert losses == pytest.approx({1.0: WHOLE, 2.0: WHOLE}, rel=1e-12)
    # A run that ends within an epoch has the loss of the last whole one, or of all that there is.
    within = mpidl.train(Still(), DATA, steps=15, batch=BATCH, report=report, dir=tmp_path)
    assert within["train_loss"] == pytest.approx(WHOLE, rel=1e-12)
    less = mpidl.train(Still(), DATA, steps=SAMPLES // BATCH - 1, batch=BATCH, report=report, dir=tmp_path)
    assert less["train_loss"] != pytest.approx(WHOLE, rel=1e-3)


def test_sandblaster_has_the_objective_at_the_accepted_point(tmp_path):
    random = np.random.default_rng(0)
    inputs = random.normal(size=(64, 3))
    data = mpidl.Arrays((inputs, np.sin(inputs.sum(axis=1, keepdims=True))), (inputs[:8], inputs[:8, :1]))
    network = mpidl.Network([mpidl.Dense(8, "tanh"), mpidl.Dense(1)], (3,), loss=MeanSquaredError(), dtype="float64")
    summary = mpidl.train(network, data, algorithm=mpidl.Sandblaster(), epochs=60, batch=16, report=1e-6, dir=tmp_path)
    assert summary["train_loss"] == summary["iteration"]["objective"]
    iterations = [each for each in records(summary) if "iteration" in each]
    assert len(iterations) > 3
    assert all(each["train_loss"] == each["iteration"]["objective"] for each in iterations)
