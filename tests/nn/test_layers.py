"""Properties of every layer."""

import tracemalloc

import numpy as np
import pytest

from layer_cases import CASES, Alone, name_of

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
    alone = Alone(*case, samples=1)
    x = [alone.random.normal(size=variable.shape) for variable in alone.variables]
    y = alone.random.normal(size=alone.outputs.shape)
    jacobian_x = (moved(alone, x, STEP) - moved(alone, x, -STEP)) / (2 * STEP)
    transposed = sum(np.vdot(each, gradient) for each, gradient in zip(x, alone.backward(y), strict=True))
    scale = np.linalg.norm(jacobian_x) * np.linalg.norm(y)
    assert abs(np.vdot(jacobian_x, y) - transposed) <= 1e-7 * scale


@layers
def test_gradients_meet_finite_differences(case):
    alone = Alone(*case, samples=3)
    y = alone.random.normal(size=alone.outputs.shape)
    gradients = [gradient.copy() for gradient in alone.backward(y)]
    for variable, gradient in zip(alone.variables, gradients, strict=True):
        places = np.linspace(0, variable.size - 1, min(variable.size, 60)).astype(int)
        for place in places:
            value = variable.flat[place]
            sides = []
            for step in (STEP, -STEP):
                variable.flat[place] = value + step
                sides.append(np.vdot(alone.forward(), y))
            variable.flat[place] = value
            expected = (sides[0] - sides[1]) / (2 * STEP)
            assert abs(gradient.flat[place] - expected) <= 1e-6 * max(1, np.abs(gradient).max())


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
