"""The average of the weights: what it is, who has it, and that a resumed run continues it."""

import numpy as np
import pytest

import mpidl
from mpidl.algorithms import Diloco
from mpidl.parameters import Range
from mpidl.storage.checkpoints import checkpoint_of, latest, read
from mpidl.storage.tensor_files import open_file

EMA = 0.9


class Follower:
    """A model that keeps each vector whose gradient it computes; the loss of tests is its first element."""

    def __init__(self):
        self.parameters = np.arange(1.0, 6.0)
        self.seen = []

    def loss_and_gradient(self, batch):
        self.seen.append(self.parameters.copy())
        return 1.0, np.array(batch.inputs.sum() + self.parameters)

    def evaluate(self, batch):
        return float(self.parameters[0]) * len(batch.inputs), 0


def data():
    inputs = np.random.default_rng(0).normal(size=(24, 1))
    return mpidl.Arrays((inputs, inputs), (inputs[:2], inputs[:2]))


def train(path, model=None, **keywords):
    model = model or Follower()
    given = {"rule": mpidl.Sgd(0.01), "batch": 2, "epochs": 2, "dir": path, "device": "cpu", "ema": EMA} | keywords
    return model, mpidl.train(model, data(), **given)


def present(run):
    return latest(run).read("parameters", Range(0, 5))


def average(vectors):
    found = vectors[0].copy()
    for vector in vectors[1:]:
        found += (1 - EMA) * (vector - found)
    return found


def test_it_is_that_of_a_plain_loop_and_what_others_get(tmp_path):
    values = []
    model, summary = train(tmp_path, servers=3, callbacks=[lambda record, found: values.append(found["parameters"])])
    run = tmp_path / "run"
    rehearsed, *seen = model.seen
    expected = average([*seen, present(run)])
    assert np.array_equal(rehearsed, seen[0])
    assert len(seen) == 24
    np.testing.assert_allclose(model.parameters, expected, rtol=1e-12)
    assert not np.allclose(present(run), expected, rtol=1e-3)
    assert np.array_equal(values[-1], model.parameters)
    for found in (read(latest(run)).tensors, open_file(run).read):
        tensor = found("parameters") if callable(found) else found["parameters"]
        assert np.array_equal(tensor, model.parameters)
    for figures in (summary, mpidl.evaluate(run, Follower(), data())):
        assert figures["test_loss"] == pytest.approx(expected[0], rel=1e-12)


@pytest.mark.parametrize("algorithm", [mpidl.Downpour(n_push=3), mpidl.Sync(), Diloco(window=4)])
def test_a_resumed_run_continues_it(tmp_path, algorithm):
    keywords = {"algorithm": algorithm, "rule": algorithm.default_rule, "deterministic": True}
    whole, _ = train(tmp_path, name="whole", epochs=4, **keywords)
    train(tmp_path, epochs=1, servers=1, **keywords)
    resumed, _ = train(tmp_path, epochs=4, servers=2, resume=True, **keywords)
    assert np.array_equal(resumed.parameters, whole.parameters)
    assert np.array_equal(present(tmp_path / "run"), present(tmp_path / "whole"))
    assert not np.array_equal(whole.parameters, present(tmp_path / "whole"))


def test_another_algorithm_continues_it(tmp_path):
    first, _ = train(tmp_path, epochs=1)
    model, _ = train(tmp_path, epochs=2, resume=True, algorithm=mpidl.Sync())
    expected = average([*first.seen[1:], *model.seen[1:], present(tmp_path / "run")])
    np.testing.assert_allclose(model.parameters, expected, rtol=1e-12)


def test_it_may_begin_and_end_with_any_checkpoint(tmp_path):
    train(tmp_path, epochs=1, ema=None)
    model, _ = train(tmp_path, epochs=2, resume=True)
    _, *seen = model.seen
    np.testing.assert_allclose(model.parameters, average([*seen, present(tmp_path / "run")]), rtol=1e-12)
    model, _ = train(tmp_path, epochs=3, resume=True, ema=None)
    assert np.array_equal(model.parameters, present(tmp_path / "run"))
    assert checkpoint_of(tmp_path / "run").trained == "parameters"
