"""Groups of parameters: which tensors they have, and what they do to a function that no rule minimises."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cut_layouts import cut_layouts, in_layout
from mpidl.data import Batch
from mpidl.errors import UsageError
from mpidl.nn import BatchNormalisation, Dense, Group, Network, Regularisation
from mpidl.nn.groups import Penalised, frozen_names, group_of, segments_of, statistics_in
from mpidl.parameters import Range
from mpidl.rules.segments import Segment

#: 0-dense/weight 0 to 12, 0-dense/bias 12 to 16, 1-dense/weight 16 to 24, 1-dense/bias 24 to 26.
LAYERS = [Dense(4, activation="relu"), Dense(2)]


@pytest.fixture
def batch():
    random = np.random.default_rng(0)
    return Batch(random.normal(size=(8, 3)), random.integers(0, 2, 8))


def network(**options):
    return Network(LAYERS, (3,), dtype="float64", **options)


def segments(groups, model=None):
    model = network() if model is None else model
    return segments_of(groups, model.layout, model.statistics)


def test_the_first_group_that_matches_counts():
    groups = [Group("*.bias", frozen=True), Group("1-dense/*", rate=0.1, weight_decay=0.5)]
    assert segments(groups) == [
        Segment(Range(12, 16), frozen=True),
        Segment(Range(16, 24), 0.1, 0.5),
        Segment(Range(24, 26), frozen=True),
    ]
    assert frozen_names(groups, network().layout) == ["0-dense/bias", "1-dense/bias"]
    assert group_of(groups, "0-dense/weight") is None
    assert group_of(groups, "1-dense/bias") is groups[0]
    assert group_of(groups, "layers.1-dense.bias") is groups[0]


def test_tensors_that_follow_each_other_are_one_segment():
    assert segments([Group("0-*", rate=0.1), Group("1-*.weight", rate=0.1)]) == [Segment(Range(0, 24), rate=0.1)]


@given(st.data())
def test_the_pieces_of_a_tensor_are_all_in_its_group(data):
    model = Network([Dense(4), BatchNormalisation(), Dense(2)], (3,))
    groups = [Group("*.bias", frozen=True), Group("1-*", rate=0.1), Group("2-*", weight_decay=0.5)]
    layout = data.draw(cut_layouts(model.layout.shapes))
    statistics = statistics_in(layout, model)
    found = segments_of(groups, layout, statistics)
    assert [each.range for each in found] == sorted(each.range for each in found)
    values = np.array([0.1, 0.5, 2, 3])
    tensors = dict.fromkeys(layout.shapes, 0.0)
    for name in tensors:
        of = {"0-dense/bias": 2, "2-dense/bias": 2, "1-batch_normalisation/scale": 0.1, "2-dense/weight": 0.5}
        of |= {"1-batch_normalisation/shift": 0.1, "1-batch_normalisation/mean": 3, "1-batch_normalisation/variance": 3}
        tensors[name] = np.full(layout.shapes[name], of.get(name, 0.0))
    expected, vector = in_layout(tensors, layout), np.zeros(layout.size)
    for each in found:
        vector[slice(*each.range)] = values[2] if each.frozen else each.weight_decay or each.rate
    for part in statistics:
        vector[slice(*part)] = values[3]
    assert vector.tolist() == expected.tolist()
    assert frozen_names(groups, layout) == frozen_names(groups, model.layout) == ["0-dense/bias", "2-dense/bias"]


def test_statistics_are_in_no_group():
    model = Network([Dense(4), BatchNormalisation(), Dense(2)], (3,))
    found = segments([Group("*", rate=0.5)], model)
    assert not any(each.range.intersect(part) for each in found for part in model.statistics)
    assert sum(each.range.size for each in found) + sum(part.size for part in model.statistics) == model.layout.size


@pytest.mark.parametrize(
    ("groups", "line"),
    [
        (
            [Group("*.bias"), Group("*.biases")],
            r"^model\.group\[1\]\.match: '\*\.biases' matches none of 0-dense\.weigh",
        ),
        ([Group("*", frozen=True)], "^model.group: every parameter is frozen, expected some to train$"),
    ],
)
def test_groups_that_can_not_be_meant_are_refused(groups, line):
    with pytest.raises(UsageError, match=line):
        segments(groups)


def test_the_line_names_only_a_few_of_many_tensors():
    with pytest.raises(UsageError, match=r"^[^,]*(, [^,]*){4}, \.\.\.$"):
        segments([Group("x")], Network([Dense(2)] * 5, (3,)))


def test_the_function_that_a_line_search_minimises_has_the_groups(batch):
    found = segments([Group("0-*.weight", weight_decay=0.3), Group("1-*.weight", frozen=True)])
    model, plain = network(), network()
    penalised = Penalised(model, found)
    own = penalised.parameters[:12].copy()
    loss, gradient = penalised.loss_and_gradient(batch)
    expected_loss, expected = plain.loss_and_gradient(batch)
    assert loss == pytest.approx(expected_loss + 0.15 * own @ own, rel=1e-15)
    np.testing.assert_allclose(gradient[:12], expected[:12] + 0.3 * own, rtol=1e-13)
    assert not gradient[16:24].any()
    np.testing.assert_array_equal(gradient[24:], expected[24:])


def test_the_gradient_of_frozen_parameters_does_not_count_for_the_norm_that_is_clipped(batch):
    models = [network(regularisation=Regularisation(clip=1e-3)) for _ in range(2)]
    models[0].freeze(["0-dense/weight", "1-dense/weight"])
    free = models[0].loss_and_gradient(batch)[1][[*range(12, 16), *range(24, 26)]]
    assert np.linalg.norm(free) == pytest.approx(1e-3)
    models[0].freeze([])
    assert [np.linalg.norm(model.loss_and_gradient(batch)[1]) for model in models] == pytest.approx([1e-3, 1e-3])
