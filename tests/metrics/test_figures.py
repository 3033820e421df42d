"""Sums of evaluations, metrics of one's own, and targets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.errors import MpidlError, UsageError
from mpidl.metrics import METRICS, MeanSquaredError
from mpidl.metrics.figures import COMPARISONS, Figures, parse
from mpidl.metrics.metric import OwnMetric

NAMES = ("loss", "accuracy", "r2")


def squares(outputs, targets):
    return ((outputs - targets) ** 2).sum(), outputs.size


def test_figures_of_parts_added_up():
    figures = Figures([METRICS["f1"](), OwnMetric("jobs:squares", "squares", squares), MeanSquaredError()], 2)
    assert figures.names == ("loss", "accuracy", "f1", "squares", "mean_squared_error")
    outputs, targets = np.array([[0.5, 1.0], [2, 0], [0, 1]]), np.array([[0.0, 1.0], [1, 0], [1, 1]])
    parts = [
        figures.sums((2, 3.0, 2, 1), outputs[:2], targets[:2]),
        figures.sums((1, 1.5, 1, 1), outputs[2:], targets[2:]),
    ]
    assert parts[0].shape == (figures.size,)
    squared = (0.25 + 1 + 1) / 6
    expected = {"loss": 1.5, "accuracy": 2 / 3, "f1": 0.75, "squares": squared, "mean_squared_error": squared}
    assert figures.values(figures.merged(*parts)) == pytest.approx(expected)


def test_nothing_is_asked_of_outputs_without_metrics():
    figures = Figures()
    assert figures.outputs(None, None) == 0
    assert figures.values(figures.sums((4, 2.0, 4, float("nan")), None, {"any": 1})) == pytest.approx(
        {"loss": 0.5, "accuracy": float("nan")}, nan_ok=True
    )


def test_outputs_must_be_known_for_metrics():
    with pytest.raises(
        UsageError, match=r"run\.metrics: mean_squared_error: evaluate\(batch\) of the model returns no outputs"
    ):
        Figures([MeanSquaredError()]).outputs(None, np.zeros(1))
    assert Figures([MeanSquaredError()]).outputs(np.zeros((1, 4)), np.zeros((1, 4))) == 4


@pytest.mark.parametrize("found", [None, 1.0, (1, 2, 3), "ab", (1, "x")])
def test_a_metric_of_ones_own_returns_two_numbers(found):
    metric = OwnMetric("jobs:ours", "ours", lambda outputs, targets: found)
    with pytest.raises(MpidlError, match=r"run\.metrics: jobs:ours returned .*, expected two numbers"):
        metric.sums(np.zeros((1, 1)), np.zeros((1, 1)), 1)


def test_a_metric_of_ones_own_that_raises():
    metric = OwnMetric("jobs:ours", "ours", lambda outputs, targets: targets["label"])
    with pytest.raises(MpidlError, match=r"run\.metrics: jobs:ours raised IndexError: only integers"):
        metric.sums(np.zeros((1, 1)), np.zeros((1, 1)), 1)


@given(
    st.sampled_from(["validation", "test"]), st.sampled_from(NAMES), st.sampled_from(sorted(COMPARISONS)),
    st.floats(-1e6, 1e6), st.sampled_from(["", " ", "  "]),
)  # fmt: skip
def test_targets(split, name, comparison, value, space):
    target = parse(f"{space}{split}_{name}{space}{comparison}{space}{value!r}{space}", NAMES)
    assert (target.figure, target.comparison, target.value) == (f"{split}_{name}", comparison, value)
    assert target.lower == comparison.startswith("<")
    assert target.reached(value) == comparison.endswith("=")
    assert target.reached(value - 1) == target.lower
    assert target.reached(value + 1) != target.lower
    assert not any(target.reached(float(each)) for each in ("nan", "inf", "-inf"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("test_r3 > 1", "target: unknown figure 'test_r3', did you mean 'test_r2'?"),
        ("train_loss < 1", "target: unknown figure 'train_loss'"),
        ("validation_f1 > 1", "target: validation_f1, but run.metrics has no 'f1'"),
        ("test_loss = 1", "target: 'test_loss = 1', expected a comparison such as"),
        ("test_loss < low", "target: 'low' is not a number"),
        ("test_loss < nan", "target: 'nan' is not a number"),
        ("", "target: '', expected a comparison such as"),
    ],
)
def test_targets_that_are_none(text, message):
    with pytest.raises(UsageError) as error:
        parse(text, NAMES)
    assert str(error.value).startswith(message)
