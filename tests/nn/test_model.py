"""The protocol of a user's own model, and the full interface that it is given."""

import doctest
import math
import re
import tracemalloc

import numpy as np
import pytest

import mpidl.nn.model
from mpidl.data import Batch
from mpidl.data.dataset import ArraySplit
from mpidl.errors import UsageError
from mpidl.metrics import MeanAbsoluteError
from mpidl.metrics.figures import Figures
from mpidl.nn import Dense, Network, adapt
from mpidl.nn.adaptation import ModelError
from mpidl.nn.evaluation import evaluate_split
from mpidl.parameters import Layout, Range


class Bare:
    def __init__(self):
        self.parameters = np.arange(17, dtype=np.float32)

    def loss_and_gradient(self, batch):
        return self.parameters.sum() * len(batch.inputs), self.parameters


class Whole(Bare):
    layout = Layout([("a", (3, 4)), ("b", (5,))])
    statistics = (Range(12, 17),)

    def evaluate(self, batch):
        return 2.5, 1


BATCH = Batch(np.zeros((3, 2)), np.zeros(3, int))


def test_the_documented_example_runs():
    result = doctest.testmod(mpidl.nn.model)
    assert result.attempted >= 4
    assert result.failed == 0


def test_what_an_object_lacks_has_defaults():
    model = adapt(Bare())
    assert model.layout == Layout([("parameters", (17,))])
    assert (model.dtype, model.statistics, model.movable) == (np.dtype("float32"), (), False)
    assert model.initial(Range(3, 6)).tolist() == [3, 4, 5]
    assert (model.activation_bytes(7), model.summaries(), model.check_data((7,), 10)) == (None, None, None)
    loss, correct = model.evaluate(BATCH)[:2]
    assert loss == 3 * 3 * np.arange(17).sum()
    assert math.isnan(correct)


def test_what_an_object_has_is_its_own():
    given = Whole()
    model = adapt(given)
    assert model.layout is given.layout
    assert model.statistics is given.statistics
    assert model.evaluate(BATCH)[:3] == (2.5, 1, None)


def test_its_parameters_are_the_objects():
    given = Bare()
    model = adapt(given)
    model.parameters[2] = 7
    assert given.parameters[2] == 7
    other = np.zeros(17, np.float32)
    model.parameters = other
    assert given.parameters is model.parameters is other


def test_a_network_has_the_full_interface_and_allocates_no_parameters():
    tracemalloc.start()
    network = Network([Dense(3000)], (5000,))
    assert adapt(network) is network
    assert tracemalloc.get_traced_memory()[1] < network.layout.size
    tracemalloc.stop()
    assert network.movable


@pytest.mark.parametrize(("missing", "has"), [("parameters", "loss_and_gradient"), ("loss_and_gradient", "parameters")])
def test_an_object_that_is_no_model_is_one_line(missing, has):
    thing = type("Thing", (), {has: np.zeros(3)})()
    with pytest.raises(UsageError, match=f"^model: Thing has no {missing}, expected a mpidl.nn.Model$"):
        adapt(thing)


def test_a_split_is_evaluated_in_batches_of_any_model():
    split = ArraySplit(np.zeros((600, 2), np.float32), np.zeros(600, int))
    assert evaluate_split(adapt(Whole()), split, 0, 600, Figures()).tolist() == [600, 7.5, 600, 3]
    weight, loss, counted, correct = evaluate_split(adapt(Bare()), split, 10, 20, Figures())
    assert loss == 10 * 10 * np.arange(17).sum()
    assert math.isnan(correct)
    assert weight == counted == 10


def test_outputs_of_a_users_own_model_are_for_metrics():
    inputs, targets = np.arange(600.0)[:, None], np.zeros((600, 1))

    class Doubling(Bare):
        def evaluate(self, batch):
            return 0.0, math.nan, 2 * batch.inputs

    figures = Figures([MeanAbsoluteError()], 1)
    sums = evaluate_split(adapt(Doubling()), ArraySplit(inputs, targets), 1, 600, figures)
    assert figures.values(sums)["mean_absolute_error"] == 600


def changed(**members):
    """Return an object with some members changed."""
    thing = Bare()
    for name, value in members.items():
        setattr(thing, name, value)
    return thing


EXPECTED = "expected a contiguous NumPy array (size,) of float32 or float64 that can be written"


@pytest.mark.parametrize(
    ("members", "line"),
    [
        ({"parameters": [1.0]}, f"parameters: found list, {EXPECTED}"),
        ({"parameters": np.zeros(3, int)}, f"parameters: found int64 of shape (3,), {EXPECTED}"),
        ({"parameters": np.zeros((2, 3))}, f"parameters: found float64 of shape (2, 3), {EXPECTED}"),
        ({"parameters": np.zeros(0)}, f"parameters: found float64 of shape (0,), {EXPECTED}"),
        (
            {"parameters": np.zeros(6)[::2]},
            f"parameters: found float64 of shape (3,) that isn't contiguous, {EXPECTED}",
        ),
        ({"loss_and_gradient": 3}, "loss_and_gradient: found int, expected a method that takes a batch"),
        ({"evaluate": 3}, "evaluate: found int, expected a method that takes a batch"),
        ({"layout": {}}, "layout: found dict, expected a Layout of 17, as in parameters"),
        ({"layout": Layout([("a", (3,))])}, "layout: found 3 elements, expected a Layout of 17, as in parameters"),
        ({"statistics": 3}, "statistics: found 3, expected Ranges within 0 to 17"),
        (
            {"statistics": (Range(9, 18),)},
            "statistics: found (Range(start=9, stop=18),), expected Ranges within 0 to 17",
        ),
    ],
)  # fmt: skip
def test_a_member_that_is_something_else_is_one_line(members, line):
    with pytest.raises(UsageError) as error:
        adapt(changed(**members))
    assert str(error.value) == f"model: Bare.{line}"


def failing(batch):
    raise ValueError("no luck")


GRADIENT = "expected contiguous float32 of shape (17,), as parameters"


@pytest.mark.parametrize(
    ("name", "method", "line"),
    [
        ("loss_and_gradient", failing, " raised ValueError: no luck (MPIDL_DEBUG=1 shows its traceback)"),
        ("loss_and_gradient", lambda: (0.0, 0), " raised TypeError: .*"),
        ("loss_and_gradient", lambda batch: None, " returned None, expected (loss, gradient)"),
        ("loss_and_gradient", lambda batch: (0.0, None), f" returned as gradient None, {GRADIENT}"),
        (
            "loss_and_gradient", lambda batch: (0.0, np.zeros(16, np.float32)),
            f" returned as gradient float32 of shape (16,), {GRADIENT}",
        ),
        (
            "loss_and_gradient", lambda batch: (0.0, np.zeros(17)),
            f" returned as gradient float64 of shape (17,), {GRADIENT}",
        ),
        (
            "loss_and_gradient", lambda batch: (0.0, np.zeros(34, np.float32)[::2]),
            f" returned as gradient float32 of shape (17,) that isn't contiguous, {GRADIENT}",
        ),
        (
            "loss_and_gradient", lambda batch: (0.0, np.ma.zeros(17, np.float32)),
            f" returned as gradient MaskedArray, {GRADIENT}",
        ),
        (
            "loss_and_gradient", lambda batch: (10**400, np.zeros(17, np.float32)),
            " returned as loss int, expected a number",
        ),
        (
            "loss_and_gradient", lambda batch: ("small", np.zeros(17, np.float32)),
            " returned as loss str, expected a number",
        ),
        ("evaluate", failing, " raised ValueError: no luck (MPIDL_DEBUG=1 shows its traceback)"),
        ("evaluate", lambda batch: 0.5, " returned float, expected (sum of the losses, correct predictions)"),
        ("evaluate", lambda batch: (0.5, None), " returned as correct predictions None, expected a number"),
    ],
)  # fmt: skip
def test_what_a_model_raises_or_returns_wrongly_is_one_line(name, method, line):
    model = adapt(changed(**{name: method}))
    with pytest.raises(ModelError) as error:
        getattr(model, name)(BATCH)
    expected = f"model: Bare.{name}{line}"
    assert str(error.value) == expected or (line.endswith(".*") and str(error.value).startswith(expected[:-2]))
    with pytest.raises(UsageError, match=re.escape(str(error.value))):
        model.rehearse(BATCH)


class Scaled:
    """Least squares; its losses are means or sums, those of its evaluation too."""

    def __init__(self, loss=np.mean, evaluated=np.sum, correct=np.sum, noise=0.0):
        self.parameters = np.array([0.5, -1.0])
        self.loss, self.evaluated, self.correct, self.noise = loss, evaluated, correct, noise

    def loss_and_gradient(self, batch):
        return self.loss((batch.inputs @ self.parameters) ** 2) + self.noise, np.zeros(2)

    def evaluate(self, batch):
        outputs = batch.inputs @ self.parameters
        return self.evaluated(outputs**2), self.correct(outputs > 0)


SEVEN = Batch(np.random.default_rng(0).normal(size=(7, 2)), np.zeros(7, int))


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (
            Scaled(evaluated=np.mean),
            "evaluate returned as loss 0.3453, a mean over the batch, expected the sum over its 7",
        ),
        (
            Scaled(correct=np.mean),
            "evaluate returned as correct predictions 0.4286, a mean over the batch, expected the",
        ),
        (Scaled(evaluated=np.mean, noise=9.0), "evaluate returned as loss "),
        (
            Scaled(loss=np.sum),
            "loss_and_gradient returned as loss 2.417, the sum over the batch's 7 samples, expected the",
        ),
    ],
)
def test_means_where_sums_are_wanted_are_found_on_the_first_batch(model, line):
    with pytest.raises(UsageError) as error:
        adapt(model).rehearse(SEVEN)
    assert str(error.value).startswith(f"model: Scaled.{line}")


@pytest.mark.parametrize("model", [Scaled(), Scaled(noise=9.0), Scaled(correct=lambda right: math.nan)])
def test_sums_are_not_taken_for_means(model):
    batches = [
        SEVEN, SEVEN._replace(weight=7.0), SEVEN._replace(inputs=SEVEN.inputs[:1], targets=SEVEN.targets[:1]),
        SEVEN._replace(inputs=np.zeros((7, 2))), SEVEN._replace(weight=70.0),
    ]  # fmt: skip
    for batch in batches:
        adapt(model).rehearse(batch)


def test_a_loss_that_depends_on_the_whole_batch_is_left_alone():
    adapt(Scaled(loss=np.std, evaluated=np.std)).rehearse(SEVEN)
    adapt(Scaled(loss=np.std, evaluated=lambda losses: losses.sum() ** 2)).rehearse(SEVEN)
