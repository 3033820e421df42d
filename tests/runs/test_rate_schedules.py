"""Schedules of rates in runs: each step has the rate of its own, whatever a portion is, and on all engines."""

import re

import numpy as np
import pytest

import mpidl
from mpidl.algorithms import Averaging, Hogwild
from mpidl.errors import UsageError
from mpidl.rules import RateSchedule

SAMPLES, BATCH = 22, 4


def falling(step):
    return 1 / (1 + step)


def negative(step):
    return -1.0 if step else 1.0


def broken(step):
    raise KeyError("step")


def text(step):
    return "half"


class Unit:
    """A model whose gradient is 1: plain SGD subtracts the rate at each step."""

    def __init__(self):
        self.parameters = np.zeros(1)
        self.before = []

    def loss_and_gradient(self, batch):
        self.before.append(float(self.parameters[0]))
        return 1.0, np.ones(1)

    def evaluate(self, batch):
        return float(len(batch.inputs)), 0


def steps(path, rate, done=0, **keywords):
    """Return the change of each step."""
    model, inputs = Unit(), np.zeros((SAMPLES, 1))
    given = {"rule": mpidl.Sgd(1.0), "batch": BATCH, "epochs": 2, "dir": path, "device": "cpu"} | keywords
    summary = mpidl.train(model, mpidl.Arrays((inputs, inputs), (inputs, inputs)), rate=rate, **given)
    assert summary["samples"] == given["epochs"] * SAMPLES
    count = 6 * (given["epochs"] - done)
    return -np.diff([*model.before[-count:], model.parameters[0]])


@pytest.mark.parametrize("portion", [BATCH, 3 * BATCH, 8 * BATCH])
@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"algorithm": mpidl.Downpour(n_push=2, n_fetch=1)},
        {"algorithm": mpidl.Sync()},
        {"algorithm": Hogwild()},
        {"algorithm": Averaging(rate=1.0, tau=1, inner="sgd"), "rule": None},
    ],
)
def test_each_step_has_a_rate_of_its_own(tmp_path, portion, keywords):
    found = steps(tmp_path, {"schedule": f"{__name__}:falling"}, portion=portion, **keywords)
    expected = np.array([falling(step) for step in range(12)])
    if "n_push" in str(keywords):  # two gradients at the rate of the second
        expected = np.where(np.arange(12) % 2, 2 * expected, 0)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_linear_warm_up_and_fall(tmp_path):
    found = steps(tmp_path, RateSchedule("linear", warm_up=0.5))
    expected = [min((step + 0.5) / 3, (12 - step - 0.5) / 9) for step in range(12)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_resumed_run_goes_on_with_its_rates(tmp_path):
    rate = {"schedule": f"{__name__}:falling", "warm_up": 1.5}
    whole = steps(tmp_path, rate, epochs=4, name="whole")
    first = steps(tmp_path, rate, epochs=1)
    rest = steps(tmp_path, rate, done=1, epochs=4, resume=True)
    np.testing.assert_allclose([*first, *rest], whole, rtol=1e-12)


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        ("negative", f"rate.schedule: {__name__}:negative: -1.0 at step 1, expected a factor of at least 0"),
        ("text", f"rate.schedule: {__name__}:text: 'half' at step 0, expected a factor of at least 0"),
        ("broken", f"rate.schedule: {__name__}:broken raised KeyError: 'step'"),
        ("nothing", f"rate.schedule: {__name__}:nothing: found nothing of that name, expected a function of (step)"),
    ],
)
def test_what_is_wrong_with_a_function(tmp_path, schedule, text):
    with pytest.raises(UsageError, match=f"^{re.escape(text)}"):
        steps(tmp_path, {"schedule": f"{__name__}:{schedule}"})


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        ({"schedule": "cosin"}, "rate.schedule: 'cosin', expected one of 'constant', 'steps', 'linear'"),
        ({"schedule": "my file:f"}, "rate.schedule: expected module:function, found 'my file:f'"),
        ({"schedule": "linear", "epochs": [3]}, "rate.epochs: [3.0], the schedule 'linear' takes none"),
    ],
)
def test_what_is_no_schedule(tmp_path, rate, text):
    with pytest.raises(UsageError, match=f"^{re.escape(text)}"):
        steps(tmp_path, rate)
