"""Runs of stacking networks: the model that they make, and what becomes of it."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import mpidl
from mpidl.algorithms import Stacking
from mpidl.config.configuration import read
from mpidl.errors import UsageError
from mpidl.launch.script import UserScript

SMALL = Stacking(modules=2, hidden=12, ridge=0.1)
FILE = {"data": {"source": "digits"}, "algorithm": {"name": "stacking", "hidden": 12, "modules": 2, "ridge": 0.1}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the summary of a run."""
    return mpidl.train(data=mpidl.Digits(), algorithm=SMALL, epochs=16, dir=tmp_path_factory.mktemp("runs"))


@pytest.fixture
def run(trained, tmp_path):
    """Return the directory of a copy of the run."""
    return shutil.copytree(trained["run_dir"], tmp_path / "run")


def test_the_trained_model_is_an_ordinary_network(trained, run):
    assert trained["test_accuracy"] > 0.85
    layers = read(run / "config.toml")["model"]["layer"]
    assert [layer["type"] for layer in layers] == ["flatten", "dense", "dense", "concatenate", "dense", "dense"]
    network, test = mpidl.load(run), mpidl.Digits().open().test
    samples = test.gather(np.arange(test.samples))
    found = network.predict(samples.inputs)
    assert np.mean(found.argmax(axis=1) == samples.targets) == pytest.approx(trained["test_accuracy"])
    assert np.mean((found - np.eye(10)[samples.targets]) ** 2) == pytest.approx(trained["test_loss"], rel=1e-5)
    assert mpidl.evaluate(run)["test_loss"] == pytest.approx(trained["test_loss"], rel=1e-6)


def test_three_modules_of_300_know_digits(tmp_path):
    summary = mpidl.train(data=mpidl.Digits(), algorithm=Stacking(), epochs=24, dir=tmp_path)
    assert summary["test_accuracy"] > 0.95


def test_a_run_goes_on_with_the_layers_that_it_has_made(trained, run):
    """The last module, with its history."""
    again = mpidl.train(config=run / "config.toml", dir=run.parent, name="run", epochs=20, resume=True)
    assert again["iteration"]["number"] > trained["iteration"]["number"]
    assert again["iteration"]["objective"] < trained["iteration"]["objective"]


def test_other_algorithms_tune_all_weights_together(trained, run):
    config = {**read(run / "config.toml"), "algorithm": {"name": "sandblaster"}}
    again = mpidl.train(config=config, dir=run.parent, name="run", epochs=20, resume=True)
    # Iterations are counted anew: it isn't stacking that goes on.
    assert 0 < again["iteration"]["number"] < trained["iteration"]["number"]
    assert again["iteration"]["objective"] < 0.98 * trained["train_loss"]
    config["algorithm"] = {"name": "sync"}
    network = mpidl.load(run)
    model = {**config["model"], "initial": str(run)}
    again = mpidl.train(config={**config, "model": model}, rule="sgd", lr=1e-9, dir=run.parent, name="new", epochs=1)
    np.testing.assert_allclose(mpidl.load(again["run_dir"]).parameters, network.parameters, atol=1e-6)


def test_targets_may_be_floats(tmp_path):
    random = np.random.default_rng(1)
    inputs = random.normal(size=(200, 3)).astype(np.float32)
    targets = np.sin(inputs @ random.normal(size=(3, 2))).astype(np.float32)
    summary = mpidl.train(
        data=mpidl.Arrays((inputs[:150], targets[:150]), (inputs[150:], targets[150:])), algorithm=SMALL,
        dtype="float64", batch=50, epochs=30, dir=tmp_path,
    )  # fmt: skip
    assert summary["test_loss"] < 0.12 * np.var(targets)


def test_a_script_that_starts_again_finds_its_run(tmp_path, monkeypatch):
    script = [UserScript(Path("script.py"), [], "job") for _ in range(2)]
    for each, epochs in zip(script, (2, 4), strict=True):
        monkeypatch.setattr("mpidl.launch.script.current", lambda each=each: each)
        summary = mpidl.train(data=mpidl.Digits(), algorithm=SMALL, epochs=epochs, dir=tmp_path)
        assert (Path(summary["run_dir"]).name, summary["epochs"] >= epochs) == ("run", True)


@pytest.mark.parametrize(
    ("model", "options", "line"),
    [
        ({"layer": [{"type": "dense", "units": 10}]}, {}, "model.layer: given, but stacking makes its own model"),
        ({"factory": "a:b"}, {}, "model: given, but stacking makes its own, expected none"),
        ({"loss": "softmax_cross_entropy"}, {}, "model.loss: given, but stacking makes its own model, expected none"),
        ({"l2": 0.1}, {}, "model.l2: given, but stacking makes its own model, expected none"),
        ({}, {"partitions": 2}, "topology.partitions: 2, but stacking trains whole modules, expected 1"),
        ({}, {"deterministic": True}, "algorithm.name: stacking depends on timing, which rules out run.deterministic"),
        ({}, {"device": "cuda"}, "device.kind: 'cuda', but stacking computes on the CPU, expected 'auto'"),
        ({}, {"rule": "adam"}, "server.rule: 'adam', but stacking has no choice of rule"),
    ],
)
def test_what_it_determines_or_has_no_use_for_is_refused(tmp_path, model, options, line):
    with pytest.raises(UsageError) as error:
        mpidl.train(config=FILE | ({"model": model} if model else {}), dir=tmp_path, epochs=1, **options)
    assert str(error.value).startswith(line)


def test_targets_of_another_kind_are_one_line(tmp_path):
    samples = [(np.ones(3, np.float32), np.ones((2, 2), np.float32))] * 4
    with pytest.raises(UsageError) as error:
        mpidl.train(data=mpidl.Indexed(samples, samples), algorithm=SMALL, epochs=1, dir=tmp_path)
    expected = "expected labels of known classes, or floats (n, outputs)"
    assert str(error.value) == f"data: targets of a batch (1, 2, 2), {expected}"
