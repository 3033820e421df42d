"""Muon: its steps against a loop of a few lines in float64, and chunks in any order."""

import numpy as np
import pytest

from mpidl.parameters.ranges import Range, chunks
from mpidl.rules import Adamw, Muon
from mpidl.rules.segments import Matrix, Segment, SegmentedRule
from mpidl.rules.tensors import WholeTensors

SHAPES = [(1, 5), (7, 1), (6, 6), (9, 4), (4, 11)]


def orthogonalised(matrix, iterations=5):
    """Return the matrix after the Newton-Schulz iteration."""
    x = matrix / (np.linalg.norm(matrix) + 1e-7)
    x = x.T if len(matrix) > matrix.shape[1] else x
    for _ in range(iterations):
        y = x @ x.T
        x = 3.4445 * x + (-4.7750 * y + 2.0315 * y @ y) @ x
    return x.T if len(matrix) > matrix.shape[1] else x


class Plain:
    """The optimiser in a few lines, for one matrix."""

    def __init__(self, rule, matrix, outputs_last=False):
        self.rule, self.matrix, self.b = rule, matrix, np.zeros_like(matrix)
        rows, columns = matrix.shape
        outputs, inputs = (columns, rows) if outputs_last else (rows, columns)
        self.scale = {"rms": 0.2 * max(rows, columns) ** 0.5, "shape": max(1, outputs / inputs) ** 0.5}[rule.scale]

    def step(self, gradient, rate):
        rule = self.rule
        self.b = rule.momentum * self.b + gradient
        direction = gradient + rule.momentum * self.b if rule.nesterov else self.b
        self.matrix = self.matrix * (1 - rate * rule.weight_decay)
        self.matrix = self.matrix - rate * self.scale * orthogonalised(direction, rule.iterations)


class Chunked:
    """One matrix between other parameters in a vector of chunks."""

    def __init__(self, rule, matrix, outputs_last=False, chunk=4, group=None):
        self.rule, (rows, columns) = rule, matrix.shape
        self.place = slice(2, 2 + matrix.size)
        whole = Range(0, matrix.size + 3)
        self.vector = np.arange(whole.size, dtype=matrix.dtype)
        self.vector[self.place] = matrix.reshape(-1)
        other = Segment(Range(0, 2), rule.other_factor, rule=rule.other)
        own = Segment(Range(2, whole.size - 1), matrix=Matrix(rows, columns, outputs_last), **(group or {}))
        segments = [other, own, other._replace(range=Range(whole.size - 1, whole.size))]
        self.pieces = chunks(whole, chunk)
        self.rules = [SegmentedRule(rule, piece, (), segments) for piece in self.pieces]
        self.tensors, self.states = WholeTensors(rule, whole, self.pieces, segments), rule.init(self.vector)

    def receive(self, chunk, gradient, step, rate=None):
        """Update by one chunk of a gradient, and return the chunks that have changed."""
        rate, own = rate or self.rule.rate, slice(*self.pieces[chunk])
        states = tuple(each[own] for each in self.states)
        self.rules[chunk].update(self.vector[own], states, gradient[own], step, rate)
        return self.tensors.arrived(chunk, self.vector, self.states, rate)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize(("scale", "outputs_last"), [("rms", False), ("shape", False), ("shape", True)])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-5)])
def test_steps_are_those_of_a_plain_loop(shape, nesterov, scale, outputs_last, dtype, tolerance):
    random = np.random.default_rng(0)
    rule = Muon(0.1, 0.9, nesterov, 0.05, scale)
    first = random.normal(size=shape)
    plain, chunked = Plain(rule, first, outputs_last), Chunked(rule, first.astype(dtype), outputs_last)
    others, adamw = chunked.vector[[0, 1, -1]], Adamw(rule.rate_adamw, weight_decay=0.05)
    moments = adamw.init(others)
    for step in range(1, 4):
        rate = 0.1 / step
        gradient = random.normal(size=chunked.vector.size) * (step < 3)  # the last one is zero
        plain.step(gradient[chunked.place].reshape(shape), rate)
        given = gradient.astype(dtype)
        changed = [
            each for chunk in reversed(range(len(chunked.pieces))) for each in chunked.receive(chunk, given, step, rate)
        ]
        assert sorted(changed) == list(range(len(chunked.pieces)))
        adamw.update(others, moments, given[[0, 1, -1]], step, rule.rate_adamw / step)
        size = rule.rate * plain.scale
        assert np.abs(chunked.vector[chunked.place].reshape(shape) - plain.matrix).max() <= tolerance * max(1, size)
        np.testing.assert_allclose(chunked.vector[[0, 1, -1]], others, rtol=10 * np.finfo(dtype).eps)


def test_increasing_momentum():
    """The momentum is an average, in which each gradient has a smaller part than the one before."""
    random, rule = np.random.default_rng(4), Muon(0.1, "increasing", nesterov=False, weight_decay=0)
    matrix, average = random.normal(size=(3, 4)), np.zeros((3, 4))
    chunked = Chunked(rule, matrix)
    for k in range(6):
        gradient = random.normal(size=chunked.vector.size)
        for chunk in reversed(range(len(chunked.pieces))):
            chunked.receive(chunk, gradient, k + 1)
        part = 1 / np.sqrt(max(1, k))
        average = (1 - part) * average + part * gradient[chunked.place].reshape(3, 4)
        matrix = matrix - 0.1 * 0.2 * 2 * orthogonalised(average)
        np.testing.assert_allclose(chunked.vector[chunked.place].reshape(3, 4), matrix, rtol=1e-6)


def test_a_zero_gradient_only_decays():
    rule, first = Muon(0.1, weight_decay=0.5), np.ones((3, 4))
    chunked = Chunked(rule, first)
    for chunk in range(len(chunked.pieces)):
        chunked.receive(chunk, np.zeros(chunked.vector.size), 1)
    assert np.array_equal(chunked.vector[chunked.place], np.full(12, 1 - 0.1 * 0.5))


def test_interleaved_gradients_make_a_step_each():
    """Each chunk's gradient enters the momentum once, and no gradient is left."""
    random, rule = np.random.default_rng(1), Muon(0.1, 0.5)
    chunked = Chunked(rule, random.normal(size=(4, 5)))
    gradients = random.normal(size=(2, chunked.vector.size))
    last = len(chunked.pieces) - 1
    before, steps = chunked.vector.copy(), []
    for chunk in reversed(range(last + 1)):
        chunked.receive(chunk, gradients[0], 1)
        if chunk < last:
            chunked.receive(chunk + 1, gradients[1], 2)
        if not np.array_equal(before[chunked.place], chunked.vector[chunked.place]):
            steps.append(chunk)
            before = chunked.vector.copy()
    assert steps == [0]
    assert chunked.tensors.state().any()
    chunked.receive(0, gradients[1], 2)
    assert not np.array_equal(before[chunked.place], chunked.vector[chunked.place])
    assert not chunked.tensors.state().any()
    np.testing.assert_allclose(chunked.states[0][chunked.place], (0.5 * gradients[0] + gradients[1])[chunked.place])


def test_a_copy_goes_on_within_a_gradient():
    random, rule = np.random.default_rng(2), Muon(0.1)
    first, gradient = random.normal(size=(3, 5)), random.normal(size=18)
    chunked, twin = Chunked(rule, first), Chunked(rule, first)
    for chunk in (4, 3, 2):
        chunked.receive(chunk, gradient, 1)
    twin.vector[:] = chunked.vector
    for own, its in zip(twin.states, chunked.states, strict=True):
        own[:] = its
    twin.tensors.load(chunked.tensors.state())
    for each in (chunked, twin):
        for chunk in (1, 0):
            each.receive(chunk, gradient, 1)
    assert np.array_equal(chunked.vector, twin.vector)
    assert not np.array_equal(twin.vector[twin.place], first.reshape(-1))


def test_matrices_that_share_chunks():
    rule, whole = Muon(0.1), Range(0, 9)
    segments = [Segment(Range(start, start + 4), matrix=Matrix(2, 2)) for start in (1, 5)]
    pieces = chunks(whole, 3)
    tensors, vectors = WholeTensors(rule, whole, pieces, segments), np.ones((3, 9))
    changed = []
    for last in (2, 1, 0):
        changed.append(tensors.arrived(last, vectors[0], vectors[1:], 0.1))
        other = WholeTensors(rule, whole, pieces, segments)
        other.reopen(last)
        assert other.state().tolist() == tensors.state().tolist()
    assert changed == [[], [2], [0, 1]]


@pytest.mark.parametrize(
    ("group", "same"),
    [
        ({"rate": 0.5}, Muon(0.05, weight_decay=0.02)),
        ({"weight_decay": 0.3}, Muon(0.1, weight_decay=0.3)),
        ({"frozen": True}, None),
    ],
)
def test_groups_set_a_matrix_apart(group, same):
    random, rule = np.random.default_rng(3), Muon(0.1, weight_decay=0.01)
    first, gradient = random.normal(size=(4, 3)), random.normal(size=15)
    chunked = Chunked(rule, first, group=group)
    for chunk in reversed(range(len(chunked.pieces))):
        chunked.receive(chunk, gradient, 1)
    expected = first
    if same is not None:
        plain = Plain(same if "rate" not in group else Muon(0.05, weight_decay=0.01), first)
        plain.step(gradient[chunked.place].reshape(4, 3), plain.rule.rate)
        expected = plain.matrix
    np.testing.assert_allclose(chunked.vector[chunked.place].reshape(4, 3), expected, rtol=1e-12)


def test_operations_and_workspace():
    rule = Muon(iterations=3)
    assert rule.operations(20, 30) == rule.operations(30, 20) == 3 * (2 * 2 * 20 * 20 * 30 + 2 * 20**3)
    assert rule.workspace_size(2, 3) == 2 * 6 + 2 * 4
