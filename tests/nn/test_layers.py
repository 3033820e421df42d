"""Properties of every layer, and the products of interactions."""

import tracemalloc

import numpy as np
import pytest

from layer_cases import CASES, Alone, name_of
from mpidl.errors import UsageError
from mpidl.nn import Interaction

STEP = 1e-6
layers = pytest.mark.parametrize("case", CASES, ids=name_of)


def moved(alone, directions, step):
    """Return a copy of the outputs with every variable moved by `step` along its direction."""
    for variable, direction in zip(alone.variables, directions, strict=True):
        variable += step * direction
    outputs = alone.forward().copy()
    for variable, direction in zip(alone.variables, directions, strict=True):
        variable -= step * direction
    return outputs


@layers
def test_the_adjoint_identity_holds(case):
    """<J x, y> = <x, J^T y>, where x comprises inputs and parameters."""
    alone = Alone(*case, samples=3)
    x = [alone.random.normal(size=variable.shape) for variable in alone.variables]
    y = alone.random.normal(size=alone.outputs.shape)
    jacobian_x = (moved(alone, x, STEP) - moved(alone, x, -STEP)) / (2 * STEP)
    transposed = sum(np.vdot(each, gradient) for each, gradient in zip(x, alone.backward(y), strict=True))
    scale = np.linalg.norm(jacobian_x) * np.linalg.norm(y)
    assert abs(np.vdot(jacobian_x, y) - transposed) <= 1e-7 * scale


@layers
def test_single_precision_is_near_double(case):
    double, single = Alone(*case), Alone(*case, dtype="float32")
    y = double.random.normal(size=double.outputs.shape)
    expected = double.forward()
    np.testing.assert_allclose(single.forward(), expected, rtol=1e-4, atol=1e-5 * max(1, np.abs(expected).max()))
    for found, expected in zip(single.backward(y), double.backward(y), strict=True):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * max(1, np.abs(expected).max()))


@layers
def test_nothing_large_is_allocated_once_warm(case):
    layer, shape = case
    wide = [(*(16 for _ in each[:-1]), each[-1]) for each in shape] if layer.joins else (16, 16, *shape[2:])
    alone = Alone(layer, wide if len(shape) > 1 else shape, samples=64, dtype="float32")
    alone.backward(1)
    tracemalloc.start()
    alone.backward(1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Less than one array of activations plus small rows and NumPy's own buffers.
    assert peak < 16384 + 0.75 * min(each.nbytes for each in alone.inputs)


@layers
def test_without_need_of_its_gradient_the_inputs_get_none(case):
    alone = Alone(*case)
    y = alone.random.normal(size=alone.outputs.shape)
    expected = {name: value.copy() for name, value in (alone.backward(y), alone.gradients)[1].items()}
    alone.forward()
    alone.output_gradient[:] = y
    joins = alone.layer.joins
    alone.layer.backward(
        alone.work, alone.inputs if joins else alone.inputs[0], alone.outputs, alone.output_gradient,
        [None] * len(alone.inputs) if joins else None,
    )  # fmt: skip
    for name, value in expected.items():
        np.testing.assert_array_equal(alone.gradients[name], value)


def spoil_scratch(alone):
    """Overwrite what a layer shares with others."""
    joins, shapes = alone.layer.joins, [each.shape[1:] for each in alone.inputs]
    for name, buffer in alone.layer.buffers(*(shapes if joins else shapes[:1])).items():
        if not buffer.per_sample and not buffer.kept:
            alone.work.buffers[name].fill(7)


@layers
def test_both_parts_together_are_the_whole(case):
    whole, parts = Alone(*case), Alone(*case)
    y = whole.random.normal(size=whole.outputs.shape)
    whole.backward(y)
    outputs, inputs = parts.forward().copy(), [each.copy() for each in parts.inputs]
    parts.first_part(y)
    # The first part leaves alone the weights' gradients, and what others need.
    assert all(np.isnan(each).all() for each in parts.gradients.values())
    np.testing.assert_array_equal(parts.outputs, outputs)
    for found, expected in zip(parts.inputs, inputs, strict=True):
        np.testing.assert_array_equal(found, expected)
    for found, expected in zip(parts.input_gradients, whole.input_gradients, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)
    spoil_scratch(parts)
    parts.second_part()
    without = Alone(*case)
    without.first_part(y, needed=False)
    without.second_part()
    for name, expected in whole.gradients.items():
        np.testing.assert_allclose(parts.gradients[name], expected, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(without.gradients[name], expected, rtol=1e-12, atol=1e-13)


def test_products_of_all_pairs_follow_the_single_vectors():
    alone = Alone(Interaction(), [(3, 2), (2,)], samples=1)
    alone.inputs[0][...], alone.inputs[1][...] = [[[1, 2], [3, 4], [5, 6]]], [[7, 8]]
    # (3, 4).(1, 2); (5, 6).(1, 2), (5, 6).(3, 4); (7, 8).(1, 2), (7, 8).(3, 4), (7, 8).(5, 6)
    assert alone.forward().tolist() == [[7, 8, 11, 17, 39, 23, 53, 83]]


def test_it_is_dlrms():
    """As in facebookresearch/dlrm: the dense vector, then the strict lower triangle of all products, row by row."""
    alone = Alone(Interaction(), [(4,), (5, 4)], samples=7)
    vectors = np.concatenate([alone.inputs[0][:, None], alone.inputs[1]], axis=1)
    products = np.einsum("nik,njk->nij", vectors, vectors)
    rows = [i for i in range(6) for _ in range(i)]
    columns = [j for i in range(6) for j in range(i)]
    expected = np.concatenate([alone.inputs[0], products[:, rows, columns]], axis=1)
    np.testing.assert_allclose(alone.forward(), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(3,), (4, 2)], "inputs: shapes (3,), (4, 2), expected (d,) or (f, d) of one d"),
        ([(3,), (4, 2, 3)], "inputs: shapes (3,), (4, 2, 3), expected (d,) or (f, d) of one d"),
        ([()], "inputs: shapes (), expected (d,) or (f, d) of one d"),
        ([(3,)], "inputs: shape (3,) has one vector, expected at least two"),
    ],
)
def test_shapes_without_products_are_one_line(shapes, message):
    with pytest.raises(UsageError) as error:
        Interaction().output_shape(*shapes)
    assert str(error.value) == message
