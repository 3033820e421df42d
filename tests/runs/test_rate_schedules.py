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


def steps(path, rate, done=0, model=None, **keywords):
    """Return the change of each step."""
    model, inputs = model or Unit(), np.zeros((SAMPLES, 1))
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


class Scripted(Unit):
    """A model with given losses of the evaluations after each epoch."""

    def __init__(self, losses, done):
        super().__init__()
        self.losses, self.done = [*losses, 0.0], done

    def evaluate(self, batch):
        epochs = self.done + len(self.before) // 6
        return self.losses[epochs - 1] * len(batch.inputs), 0


def rates_of_epochs(path, losses, done=0, epochs=7, **keywords):
    """Return the rate of the last step of each epoch."""
    model = Scripted(losses, done)
    found = steps(path, {"schedule": "plateau", "factor": 0.5, "patience": 1}, done, model, epochs=epochs, **keywords)
    return found[5::6].tolist()


def test_rates_fall_on_a_plateau(tmp_path):
    losses = [3.0, 2.0, 2.0, 2.5, 1.0, 1.0, 1.0]
    assert rates_of_epochs(tmp_path, losses) == [1, 1, 1, 1, 0.5, 0.5, 0.5]
    assert rates_of_epochs(tmp_path, losses, algorithm=mpidl.Sync(), name="together") == [1, 1, 1, 1, 0.5, 0.5, 0.5]
    assert rates_of_epochs(tmp_path, [2.0] * 7, name="flat") == [1, 1, 1, 0.5, 0.5, 0.25, 0.25]
    rising = [0.1, 0.2, 0.2, 0.2, 0.3, 0.3, 0.3]
    keywords = {"target": "loss > 9", "name": "rising"}
    assert rates_of_epochs(tmp_path, rising, **keywords) == [1, 1, 1, 1, 0.5, 0.5, 0.5]


def test_a_resumed_run_stays_on_its_plateau(tmp_path):
    losses = [2.0] * 9
    whole = rates_of_epochs(tmp_path, losses, name="whole", epochs=9)
    rates = rates_of_epochs(tmp_path, losses, epochs=4)
    rates += rates_of_epochs(tmp_path, losses, 4, epochs=9, resume=True)
    assert rates == whole == [1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]


def test_where_there_is_no_plateau(tmp_path):
    with pytest.raises(UsageError, match=r"^rate.schedule: 'plateau', but the data have neither validation nor test"):
        mpidl.train(Unit(), mpidl.Indexed([(np.zeros(1), np.zeros(1))]), rate={"schedule": "plateau"}, dir=tmp_path)
