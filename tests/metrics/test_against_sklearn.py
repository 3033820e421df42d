"""Metrics against scikit-learn, of all samples at once: what pieces of any size add up to is the same."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as oracle

from mpidl.errors import UsageError
from mpidl.metrics import F1, METRICS, R2, Auc, MeanAbsoluteError, MeanSquaredError, Top5Accuracy


@st.composite
def classified(draw, most=9, least_digits=0):
    """Draw outputs (n, classes) and class ids (n,), with ties if they have few digits."""
    classes, samples = draw(st.integers(2, most)), draw(st.integers(1, 67))
    random = np.random.default_rng(draw(st.integers(0, 999)))
    outputs = random.normal(size=(samples, classes)).round(draw(st.integers(least_digits, 6)))
    return outputs, random.integers(0, classes, samples)


@st.composite
def labelled(draw):
    """Draw outputs (n, labels) and rows of 0 and 1."""
    labels, samples = draw(st.integers(1, 6)), draw(st.integers(1, 67))
    random = np.random.default_rng(draw(st.integers(0, 999)))
    outputs = random.normal(size=(samples, labels))
    return outputs, (outputs + random.normal(size=outputs.shape) > 0).astype(np.float32)


@st.composite
def measured(draw):
    """Draw outputs and targets (n, outputs) of a regression."""
    shape = draw(st.integers(2, 67)), draw(st.integers(1, 5))
    random = np.random.default_rng(draw(st.integers(0, 999)))
    targets = random.normal(draw(st.sampled_from([0, 100, -1e6])), 1, shape)
    return targets + random.normal(0, 0.5, shape), targets


def in_pieces(metric, outputs, targets, size=7, weight=1.0):
    """Return a metric, its sums added up over pieces of an odd size."""
    sums = np.zeros(metric.size(1 if outputs.ndim == 1 else outputs.shape[-1]))
    for start in range(0, len(outputs), size):
        part = slice(start, start + size)
        sums = metric.merged(sums, metric.sums(outputs[part], targets[part], weight * len(outputs[part])))
    return metric.value(sums)


@given(classified())
def test_top5_accuracy(case):
    outputs, labels = case
    expected = 1.0
    if outputs.shape[1] > 5:
        expected = oracle.top_k_accuracy_score(labels, outputs, k=5, labels=range(outputs.shape[1]))
    assert in_pieces(Top5Accuracy(), outputs, labels) == pytest.approx(expected)
    rows = np.eye(outputs.shape[1])[labels]
    assert in_pieces(Top5Accuracy(), outputs, rows) == pytest.approx(expected)


@given(measured())
def test_regression(case):
    outputs, targets = case
    assert in_pieces(MeanSquaredError(), outputs, targets) == pytest.approx(oracle.mean_squared_error(targets, outputs))
    assert in_pieces(MeanAbsoluteError(), outputs, targets) == pytest.approx(
        oracle.mean_absolute_error(targets, outputs)
    )
    assert in_pieces(R2(), outputs, targets) == pytest.approx(oracle.r2_score(targets, outputs), rel=1e-6)


def test_r2_of_targets_that_are_all_the_same():
    targets = np.full((9, 2), 0.25)
    assert in_pieces(R2(), targets, targets) == oracle.r2_score(targets, targets) == 1
    outputs = targets + np.array([0, 1])
    assert in_pieces(R2(), outputs, targets) == oracle.r2_score(targets, outputs) == 0.5


@given(classified())
def test_f1_of_classes(case):
    outputs, labels = case
    expected = oracle.f1_score(labels, outputs.argmax(axis=1), average="macro")
    assert in_pieces(F1(), outputs, labels) == pytest.approx(expected)


@given(labelled())
def test_f1_of_labels(case):
    outputs, rows = case
    predicted = outputs > 0
    occurs = (predicted | (rows > 0)).any(axis=0)
    each = [oracle.f1_score(rows[:, label], predicted[:, label]) for label in np.flatnonzero(occurs)]
    assert in_pieces(F1(), outputs, rows) == pytest.approx(np.mean(each) if each else np.nan, nan_ok=True)


def known(rows):
    """Return the columns that have both zeros and ones."""
    return np.flatnonzero((rows.min(axis=0) == 0) & (rows.max(axis=0) == 1))


@given(labelled())
def test_auc_of_labels(case):
    outputs, rows = case
    each = [oracle.roc_auc_score(rows[:, label], outputs[:, label]) for label in known(rows)]
    assert in_pieces(Auc(), outputs, rows) == pytest.approx(np.mean(each) if each else np.nan, nan_ok=True)


@given(classified(least_digits=6))
def test_auc_of_classes_is_of_one_against_the_rest(case):
    outputs, labels = case
    probabilities = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    odds = np.log(probabilities / (1 - probabilities))
    rows = np.eye(outputs.shape[1])[labels]
    each = [oracle.roc_auc_score(rows[:, label], odds[:, label]) for label in known(rows)]
    assert in_pieces(Auc(), outputs, labels) == pytest.approx(np.mean(each) if each else np.nan, nan_ok=True)


@pytest.mark.parametrize(("middle", "scale"), [(0, 1), (1000, 1), (-1e6, 1), (0, 1e-6), (0, 1e30)])
@pytest.mark.parametrize("size", [128, 20_000])
@pytest.mark.parametrize("by_class", [False, True])
def test_auc_of_scores_wherever_they_lie(middle, scale, size, by_class):
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 20_000)
    labels = np.sort(labels) if by_class else labels
    scores = middle + scale * random.normal(labels, 1)
    expected = pytest.approx(oracle.roc_auc_score(labels, scores), abs=2e-4)
    assert in_pieces(Auc(), scores, labels, size) == expected
    # Two outputs of the same difference are the same classifier.
    pair = np.stack([0.3 - scores / 2, 0.3 + scores / 2], axis=1)
    assert in_pieces(Auc(), pair, labels, size) == expected


def test_auc_of_equal_scores():
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 2000)
    assert in_pieces(Auc(), np.full(2000, 0.3), labels) == oracle.roc_auc_score(labels, np.full(2000, 0.3)) == 0.5
    # Many of them are equal, beside more different ones than there are bins.
    scores = np.maximum(random.normal(labels, 1), 0.1)
    assert in_pieces(Auc(), scores, labels) == pytest.approx(oracle.roc_auc_score(labels, scores), abs=2e-4)
    # As many different ones as there are bins.
    scores = random.integers(0, 512, 2000) / 7
    assert in_pieces(Auc(), scores, labels) == pytest.approx(oracle.roc_auc_score(labels, scores), abs=1e-12)


def test_auc_of_infinite_outputs():
    outputs, rows = np.array([[np.inf], [-np.inf], [1e308], [3]]), np.array([[1.0], [0], [1], [0]])
    assert in_pieces(Auc(), outputs, rows) == 1
    # Of logits, their probabilities are NaN.
    assert np.isnan(in_pieces(Auc(), np.array([[np.inf, 0], [0, 1]]), np.array([0, 1])))


@pytest.mark.parametrize("name", [name for name in METRICS if name != "top5_accuracy"])
@pytest.mark.parametrize("where", [slice(None), (60, 4)])
def test_figures_of_outputs_that_are_nan_are_nan(name, where):
    random = np.random.default_rng(0)
    outputs, labels = random.normal(size=(67, 9)), random.integers(0, 9, 67)
    outputs[where] = np.nan
    for targets in (labels, np.eye(9)[labels], np.full((67, 9), 0.25)):
        assert np.isnan(in_pieces(METRICS[name](), outputs, targets))


@pytest.mark.parametrize(("where", "expected"), [(slice(None), 0), ((3, 4), 66 / 67), ((3, 0), 66 / 67)])
def test_top5_accuracy_of_outputs_that_are_nan(where, expected):
    labels = np.arange(67) % 9
    rows = np.eye(9)[labels]
    outputs = rows.copy()
    outputs[where] = np.nan
    assert in_pieces(Top5Accuracy(), outputs, labels) == pytest.approx(expected)
    assert in_pieces(Top5Accuracy(), outputs, rows) == pytest.approx(expected)


def test_top5_accuracy_of_equal_outputs():
    labels, outputs = np.arange(20) % 10, np.zeros((20, 10))
    expected = oracle.top_k_accuracy_score(labels, outputs, k=5)
    assert in_pieces(Top5Accuracy(), outputs, labels) == expected == 0.5


def test_auc_has_a_limit_of_classes():
    with pytest.raises(UsageError, match=r"run\.metrics: 'auc' takes up to 100 outputs, the model has 101"):
        Auc().size(101)


@pytest.mark.parametrize("name", METRICS)
@given(case=classified(most=4), size=st.integers(1, 70), weight=st.sampled_from([0.5, 1.0, 8.0]))
def test_pieces_of_any_size_and_weights_in_common_change_nothing(name, case, size, weight):
    metric = METRICS[name]()
    whole = metric.value(metric.sums(*case, len(case[0])))
    assert in_pieces(metric, *case, size=size, weight=weight) == pytest.approx(whole, nan_ok=True)


def test_a_weight_counts_beside_that_of_other_batches():
    metric, zeros = MeanSquaredError(), np.zeros((2, 3))
    assert metric.value(metric.sums(zeros, zeros, 30) + metric.sums(zeros + 1, zeros, 10)) == 0.25


def test_a_weight_is_none_of_a_score():
    metric, targets = Auc(), np.array([[0.0], [1.0]])
    light, heavy = (
        metric.sums(np.array(scores)[:, None], targets, weight) for scores, weight in (([1, 3], 2), ([2, 4], 20))
    )
    assert metric.value(metric.merged(light, heavy)) == 1.0
    heavy = metric.sums(np.array([[3.5], [4]]), targets, 20)
    assert metric.value(metric.merged(light, heavy)) == pytest.approx(1 - 10 * 1 / (11 * 11))


@pytest.mark.parametrize("name", METRICS)
def test_class_ids_of_sequences_in_both_orders_of_axes(name):
    random = np.random.default_rng(0)
    outputs, labels = random.normal(size=(3, 7, 5)), random.integers(0, 5, (3, 7))
    metric = METRICS[name]()
    expected = metric.sums(outputs.reshape(21, 5), labels.reshape(21), 3)
    assert metric.sums(outputs, labels, 3) == pytest.approx(expected)
    assert metric.sums(np.moveaxis(outputs, -1, 1), labels, 3) == pytest.approx(expected)
    # Those below 0 are left out, as PyTorch's ignore_index.
    padded = np.concatenate([labels, np.full((3, 2), -100)], axis=1)
    longer = np.concatenate([outputs, random.normal(size=(3, 2, 5))], axis=1)
    assert metric.sums(longer, padded, 3) == pytest.approx(expected)
    assert not metric.sums(longer, np.full((3, 9), -1), 3).any()


@pytest.mark.parametrize("shapes", [((5,), (5,)), ((5, 1), (5,)), ((5,), (5, 1)), ((5, 1), (5, 1))])
def test_one_output_in_any_form(shapes):
    numbers = np.arange(5.0), np.arange(5.0) + 2
    outputs, targets = (values.reshape(shape) for values, shape in zip(numbers, shapes, strict=True))
    assert in_pieces(MeanSquaredError(), outputs, targets) == 4


@pytest.mark.parametrize(
    ("outputs", "targets", "message"),
    [
        (np.zeros((4, 3)), np.zeros((4, 2)), r"targets \(4, 2\) of float64, .* outputs \(4, 3\)"),
        (np.zeros((4, 3)), np.full(4, 3), "class id 3, expected less than the 3 outputs"),
        (np.zeros((4, 3)), np.array(["a"] * 4), "outputs are float64, targets <U1, expected numbers"),
    ],
)
def test_what_does_not_fit_together(outputs, targets, message):
    with pytest.raises(UsageError, match=message):
        MeanSquaredError().sums(outputs, targets, 4)
