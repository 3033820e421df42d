"""Which tensors a rule of whole matrices updates, and as which matrices."""

import numpy as np
import pytest

import mpidl
from mpidl.nn import adapt
from mpidl.nn.groups import Group
from mpidl.nn.matrices import as_matrix, matrices, segments_by_tensors
from mpidl.parameters import Layout
from mpidl.parameters.ranges import Box, Range
from mpidl.rules import Muon
from mpidl.rules.segments import Matrix


def test_a_convolution_is_a_matrix_of_its_outputs():
    assert as_matrix((8, 3, 5, 5), outputs_last=False) == Matrix(8, 75)
    assert as_matrix((5, 5, 3, 8), outputs_last=True) == Matrix(75, 8, True)


def network():
    layers = [
        mpidl.nn.Embedding(11, 4, name="words"), mpidl.nn.Flatten(), mpidl.nn.Dense(7, name="a"),
        mpidl.nn.Dense(5, name="b"), mpidl.nn.Dense(3, name="head"),
    ]  # fmt: skip
    return mpidl.Network(layers, (6,))


def test_embeddings_the_head_and_vectors_are_no_matrices():
    assert matrices([], network()) == {"a/weight": Matrix(24, 7, True), "b/weight": Matrix(7, 5, True)}


def test_groups_choose():
    groups = [Group("head.weight", matrix=True), Group("a.*", matrix=False), Group("b.*", frozen=True)]
    assert list(matrices(groups, network())) == ["head/weight"]
    shape = r"'a.bias': a/bias has the shape \(7,\), but matrix is true, expected at least 2 axes"
    with pytest.raises(mpidl.UsageError, match=f"^model.group: match: {shape}$"):
        matrices([Group("a.bias", matrix=True)], network())


def test_a_model_of_a_single_vector_has_none():
    class Own:
        parameters = np.zeros(3)

        def loss_and_gradient(self, batch):
            return 0.0, np.zeros(3)

    assert matrices([], adapt(Own())) == {}


def test_a_matrix_in_pieces_is_one_line():
    layout = Layout([("a", (4, 6)), ("b", (2, 2))])
    half = Layout(
        layout.shapes.items(),
        [("a", Box((Range(0, 2), Range(0, 6)))), ("a", Box((Range(2, 4), Range(0, 6)))), ("b", Box.whole((2, 2)))],
    )
    expected = "which muon needs whole, expected as many topology.stages as partitions"
    with pytest.raises(mpidl.UsageError, match=f"^topology.partitions: cuts a, {expected}$"):
        segments_by_tensors(Muon(), [], half, (), {"a": Matrix(4, 6)})


def test_segments_cover_all_but_statistics():
    layout = Layout([("a", (4, 6)), ("x", (3,)), ("y", (2,)), ("mean", (2,)), ("b", (2, 2))])
    rule = Muon(0.1, rate_adamw=0.01)
    found = segments_by_tensors(rule, [Group("y", rate=2.0)], layout, [Range(29, 31)], {"a": Matrix(4, 6)})
    assert [(tuple(each.range), each.rate, each.rule, each.matrix) for each in found] == [
        ((0, 24), 1.0, None, Matrix(4, 6)),
        ((24, 27), 0.01 / 0.1, rule.other, None),
        ((27, 29), 2 * (0.01 / 0.1), rule.other, None),
        ((31, 35), 0.01 / 0.1, rule.other, None),
    ]
