"""What `mpidl.train` makes of its arguments and of a configuration."""

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import mpidl
from mpidl.config import from_dict, load, toml
from mpidl.parameters import Range
from mpidl.runs.keywords import KEYWORDS
from mpidl.storage.checkpoint import Checkpoint

LAYERS = [{"type": "dense", "units": 10}]
SECTIONS = {
    "run": {"steps": 8, "seed": 3},
    "data": {"source": "synthetic", "shape": [3], "classes": 10, "batch": 8, "augment": {"translate": 1}},
    "model": {"layer": LAYERS},
    "algorithm": {"name": "softsync", "n": 2},
    "server": {"rule": "sgd", "rate": 0.5},
    "rate": {"schedule": "steps", "epochs": [2]},
    "topology": {"servers": 3},
    "checkpoint": {"every": 5, "keep": 2},
    "device": {"kind": "cpu", "transfer": "staged"},
    "debug": {"slow_worker": 1},
}
DATA = (
    "data: expected a Dataset or a source, such as mpidl.Digits(), mpidl.Arrays((x, y), (test_x, test_y)) or "
    "mpidl.Indexed(train, test)"
)
OTHERS = {
    "algorithm": mpidl.Downpour(n_push=4),
    "rule": mpidl.Adam(0.1),
    "rate": mpidl.rules.RateSchedule("cosine"),
    "servers": 2,
    "augment": mpidl.data.Augmentation(reflect=True),
    "dir": Path("elsewhere"),
    "steps": 5,
    "device": "cuda",
    "debug": mpidl.config.DebugSection(slow_worker=2),
}


def test_a_configuration_alone(resolved, tmp_path):
    config = from_dict(SECTIONS)
    path = tmp_path / "run.toml"
    path.write_text(toml.dump(SECTIONS))
    for given in (config, SECTIONS, path, str(path)):
        assert resolved(config=given) == config


@pytest.mark.parametrize("given", [None, SECTIONS, from_dict(SECTIONS)], ids=["none", "mapping", "Config"])
def test_an_argument_wins_over_the_configuration(resolved, given):
    model, data = mpidl.Network([mpidl.Dense(10)], (8, 8)), mpidl.Digits()
    before = resolved(model, data, config=given)
    for key, value in OTHERS.items():
        assert resolved(model, data, config=given, **{key: value}) != before, key
    config = resolved(model, data, config=given, **OTHERS)
    assert (config.algorithm, config.rule, config.rate) == (OTHERS["algorithm"], OTHERS["rule"], OTHERS["rate"])
    assert (config.data.augment, config.topology.servers) == (OTHERS["augment"], 2)
    assert (config.run.dir, config.run.epochs, config.run.steps) == ("elsewhere", None, 5)
    assert (config.debug, config.device.kind) == (OTHERS["debug"], "cuda")
    assert config.device.transfer == ("auto" if given is None else "staged")


def test_sections_may_be_mappings(resolved):
    device = {"kind": "cpu", "transfer": "direct"}
    config = resolved(config=SECTIONS, rate={"warm_up": 2}, device=device, augment={"reflect": True})
    assert config.rate == mpidl.rules.RateSchedule(warm_up=2.0)
    assert config.device == mpidl.config.DeviceSection(**device)
    assert config.data.augment == mpidl.data.Augmentation(reflect=True)


def test_the_defaults_are_those_of_the_sections(resolved):
    config = resolved(mpidl.Network([mpidl.Dense(10)], (8, 8)), mpidl.Digits())
    assert config == from_dict({"data": {"source": "digits"}, "model": {"factory": "python:object"}})


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"epochs": 0}, "run.epochs: expected int >= 1, found 0"),
        ({"epochs": 1, "steps": 1}, "run.steps: run.epochs is given too, expected one of them"),
        ({"device": "tpu"}, "device.kind: expected 'auto' or 'cpu' or 'cuda', found 'tpu'"),
        ({"data": 3}, f"{DATA}, found 3"),
        ({"data": (np.zeros((9, 2)), np.zeros(9, int))}, f"{DATA}, found a tuple"),
        ({"data": np.zeros((9, 2))}, f"{DATA}, found a ndarray"),
        ({"data": mpidl.Digits}, f"{DATA}, found <class 'mpidl.data.builtin.Digits'>"),
        ({"algorithm": 3}, "algorithm: expected one such as mpidl.Downpour(), or its name, found 3"),
        ({"rule": mpidl.Adagrad}, "rule: found the class Adagrad, expected one of its objects"),
        ({"config": {"run": 3, "data": {"source": "digits"}}}, "run: expected a section, [run], found 3"),
        ({"rate": mpidl.Sgd()}, "rate: expected a section, [rate], found Sgd(rate=0.01)"),
        ({"serverz": 2}, "mpidl.train: unknown keyword 'serverz', did you mean 'servers'?"),
        ({"algoritm": mpidl.Sync()}, "mpidl.train: unknown keyword 'algoritm', did you mean 'algorithm'?"),
        ({"config": "absent.toml"}, "absent.toml: No such file or directory"),
    ],
)
def test_what_is_wrong_is_one_line(resolved, arguments, line):
    given = {"config": from_dict({"data": {"source": "digits"}, "model": {"layer": LAYERS}})} | arguments
    with pytest.raises(mpidl.UsageError) as error:
        resolved(**given)
    assert str(error.value) == line


def test_a_run_from_a_configuration(tmp_path):
    summary = mpidl.train(config=SECTIONS, dir=tmp_path, algorithm=mpidl.Downpour(), device="cpu", augment={})
    assert summary["epochs"] == 8 * 8 / 10_000
    assert mpidl.evaluate(tmp_path / "run")["step"] == 8
    more = mpidl.train(config=tmp_path / "run" / "config.toml", steps=12, resume=True)
    assert more["run_dir"] == str(tmp_path / "run")
    assert mpidl.evaluate(str(tmp_path / "run"))["step"] == 12


def test_a_deterministic_run_is_resumed_with_other_settings(tmp_path):
    """Its replica begins anew, at what the one before has left of the data."""
    mpidl.train(config=SECTIONS, dir=tmp_path, algorithm=mpidl.Downpour(), deterministic=True, device="cpu", augment={})
    resumed = {"config": tmp_path / "run" / "config.toml", "steps": 12, "resume": True}
    summary = mpidl.train(**resumed, algorithm=mpidl.Downpour(n_push=2))
    assert summary["epochs"] == 12 * 8 / 10_000
    assert mpidl.evaluate(tmp_path / "run")["step"] == 12


@dataclass(frozen=True)
class Ours(mpidl.data.Synthetic):
    """A source that no configuration can name."""

    name: ClassVar[str] = "ours"
    shape: tuple[int, ...] = (5,)


def test_parts_that_no_configuration_can_name(resolved):
    config = from_dict(SECTIONS, data_source=Ours(), algorithm=mpidl.Sync(), rule=mpidl.Momentum())
    assert (config.data_source, config.algorithm, config.rule) == (Ours(), mpidl.Sync(), mpidl.Momentum())
    assert resolved(config=config) == config
    assert resolved(config=config, data=mpidl.Digits(), rule=mpidl.Sgd()).rule == mpidl.Sgd()


def test_data_and_model_of_a_script(tmp_path, least_squares):
    model, split = least_squares()
    data = mpidl.Dataset("test", (13,), None, split, split)
    initial = model.parameters.copy()
    mpidl.train(model, data, batch=8, epochs=1, dir=tmp_path)
    assert not np.array_equal(model.parameters, initial)
    with pytest.raises(mpidl.UsageError, match=r"^data.source: the data of this run were given by a Python script: "):
        mpidl.evaluate(tmp_path / "run")
    with pytest.raises(mpidl.UsageError, match=r"^model.factory: .* is an object of a Python script: give it to "):
        mpidl.evaluate(tmp_path / "run", data=data)
    assert load(tmp_path / "run" / "config.toml").data.batch == 8
    summary = mpidl.train(model, data, config=tmp_path / "run" / "config.toml", epochs=2, resume=True)
    assert summary["epochs"] == 2


def test_a_run_of_a_script_is_evaluated_with_its_data_and_model_given_again(tmp_path, least_squares):
    model, split = least_squares()
    data = mpidl.Dataset("test", (13,), None, split, split)
    summary = mpidl.train(model, data, batch=8, epochs=1, dir=tmp_path)
    again, _ = least_squares()
    found = mpidl.evaluate(str(tmp_path / "run"), again, data)
    assert (found["step"], found["test_loss"]) == (13, pytest.approx(summary["test_loss"]))
    assert np.array_equal(again.parameters, model.parameters)
    with pytest.raises(mpidl.UsageError, match=r"13 parameters, the model has 5$"):
        mpidl.evaluate(tmp_path / "run", least_squares(5)[0], data)


def test_a_run_on_a_source_that_no_configuration_can_name_is_evaluated_on_it(tmp_path):
    mpidl.train(config=SECTIONS, data=Ours(classes=10), algorithm=mpidl.Downpour(), dir=tmp_path, augment={})
    assert mpidl.evaluate(tmp_path / "run", data=Ours(classes=10))["step"] == 8


def test_a_finished_run_that_is_resumed_gives_the_model_its_parameters(tmp_path, least_squares):
    trained, split = least_squares()
    options = {"data": mpidl.Dataset("test", (13,), None, split, split), "batch": 8, "epochs": 1, "dir": tmp_path}
    mpidl.train(trained, **options)
    model, _ = least_squares()
    mpidl.train(model, **options, resume=True)
    assert np.array_equal(model.parameters, trained.parameters)


def test_a_network_continues_from_the_values_that_it_has(tmp_path):
    """Those that it was trained to, was loaded with, or was given; a new one begins with those of its seed."""

    whole = Range(0, 650)

    def train(network, begins, name):
        mpidl.train(network, mpidl.Digits(), rule=mpidl.Sgd(0.1), steps=2, dir=tmp_path, name=name)
        assert np.array_equal(Checkpoint(tmp_path / name / "checkpoints" / "0").read("parameters", whole), begins)
        assert not np.array_equal(network.parameters, begins)
        return network.parameters.copy()

    def make():
        return mpidl.Network([mpidl.Dense(10)], (8, 8))

    network, drawn = make(), make().initial(whole)
    once = train(network, drawn, "once")
    train(network, once, "twice")
    mpidl.train(data=mpidl.Digits(), config={"model": {"layer": LAYERS}}, steps=1, dir=tmp_path, name="layers")
    loaded = mpidl.load(tmp_path / "layers")
    train(loaded, loaded.parameters.copy(), "loaded")
    network.parameters = np.ones_like(drawn)
    train(network, np.ones_like(drawn), "given")
    train(make(), drawn, "new")


def test_a_model_is_tested_in_its_own_way(tmp_path, least_squares):
    """It alone knows what to leave out when it isn't trained; its training pass says nothing about the test data."""
    model, split = least_squares()
    model.evaluate = lambda batch: (2.0 * len(batch.inputs), len(batch.inputs) - 1)
    data = mpidl.Dataset("test", (13,), None, split, split)
    summary = mpidl.train(model, data, batch=8, epochs=1, dir=tmp_path)
    assert (summary["test_loss"], summary["test_accuracy"]) == (2, 100 / 101)
    found = mpidl.evaluate(tmp_path / "run", model, data)
    assert (found["test_loss"], found["test_accuracy"]) == (2, 100 / 101)


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: mpidl.Adagrad(-1), "Adagrad.rate: expected float > 0, found -1"),
        (lambda: mpidl.Adam(beta1=float("nan")), "Adam.beta1: expected float >= 0 and < 1, found nan"),
        (lambda: mpidl.rules.RateSchedule(warm_up="no"), "RateSchedule.warm_up: expected float >= 0, found 'no'"),
        (lambda: mpidl.Dense(-3), "Dense.units: expected int >= 1, found -3"),
        (lambda: mpidl.Dense(3, inputs="ab"), "Dense.inputs: expected list of str, found 'ab'"),
        (lambda: mpidl.nn.Dropout(1), "Dropout.rate: expected float >= 0 and < 1, found 1"),
        (
            lambda: mpidl.nn.Embedding(1 << 70, 3),
            "Embedding.vocabulary: expected int >= 1, found an integer of more than 64 bits",
        ),
        (
            lambda: mpidl.nn.SoftmaxCrossEntropy(-0.1),
            "SoftmaxCrossEntropy.smoothing: expected float >= 0 and < 1, found -0.1",
        ),
        (lambda: mpidl.nn.Regularisation(l2=-1), "Regularisation.l2: expected float >= 0, found -1"),
        (lambda: mpidl.Downpour(n_push=0), "Downpour.n_push: expected int >= 1, found 0"),
        (lambda: mpidl.algorithms.Easgd(wire=3), "Easgd.wire: expected str, found 3"),
        (
            lambda: mpidl.data.Synthetic(shape=(3, 0)),
            "Synthetic.shape: expected non-empty list of int >= 1, found (3, 0)",
        ),
        (lambda: mpidl.data.Hdf5(None), "Hdf5.path: expected str or list of str, found None"),
        (lambda: mpidl.data.Augmentation(rotate=200), "Augmentation.rotate: expected float >= 0 and <= 180, found 200"),
        (
            lambda: mpidl.data.Normalisation(std=[1.0, 0.0]),
            "Normalisation.std: expected float > 0 or list of float > 0, found [1.0, 0.0]",
        ),
        (
            lambda: mpidl.config.DeviceSection("tpu"),
            "DeviceSection.kind: expected 'auto' or 'cpu' or 'cuda', found 'tpu'",
        ),
    ],
)
def test_what_a_script_gives_is_checked_as_in_a_file(make, line):
    with pytest.raises(mpidl.UsageError) as error:
        make()
    assert str(error.value) == line


def test_a_prompt_completes_keywords():
    assert {*KEYWORDS, "model", "config", "rule"} < set(inspect.signature(mpidl.train).parameters)


def test_numbers_of_numpy_are_taken():
    layer = mpidl.Dense(np.int64(3))
    assert type(layer.units) is int
    rule = mpidl.Adagrad(np.float32(0.5))
    assert (type(rule.rate), rule) == (float, mpidl.Adagrad(0.5))
    assert type(mpidl.Adagrad(1).rate) is float
    assert mpidl.data.Normalisation(np.array([0.5, 0.25])).mean == [0.5, 0.25]
    assert mpidl.data.Synthetic(shape=[3, 5]).shape == (3, 5)


def test_arrays_of_a_script(tmp_path):
    random = np.random.default_rng(0)
    inputs = random.integers(0, 50, (40, 6))
    data = mpidl.Arrays((inputs, inputs[:, 0] % 3), (inputs[:7], inputs[:7, 0] % 3), classes=3)
    network = mpidl.Network([mpidl.nn.Embedding(50, 2), mpidl.Dense(3)], (6,))
    assert mpidl.train(network, data, batch=8, epochs=1, dir=tmp_path)["samples"] == 40
