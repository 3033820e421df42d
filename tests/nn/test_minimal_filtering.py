"""The formulas of minimal filtering equal the matrices derived from their points."""

import numpy as np
import pytest

from mpidl.nn.kernels.cpu.winograd import (
    DATA,
    DATA_ADJOINT,
    FORMULAS,
    OUTPUTS,
    OUTPUTS_ADJOINT,
    POINTS,
    STEP,
)
from mpidl.nn.winograd import kernel_matrix


def matrices(side):
    """Return A and B of a tile's points, the last of which is infinity (Toom and Cook's construction)."""
    points = [0.0, *(sign * point for point in POINTS[side] for sign in (1, -1))]
    a = np.zeros((side, STEP))
    a[:-1] = np.power.outer(points, np.arange(STEP))
    a[-1, -1] = 1
    rows = [np.poly([other for other in points if other != point])[::-1] for point in points]
    b = np.zeros((side, side))
    b[:-1, :-1] = rows
    b[-1] = np.poly(points)[::-1]
    return a, b.T


@pytest.mark.parametrize("side", [6, 8])
def test_formulas(side):
    a, b = matrices(side)
    for kind, matrix in {DATA: b.T, DATA_ADJOINT: b, OUTPUTS: a.T, OUTPUTS_ADJOINT: a}.items():
        found = np.array([FORMULAS[side][kind](unit) for unit in np.eye(matrix.shape[1])]).T
        np.testing.assert_allclose(found, matrix, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("side", [6, 8])
def test_four_outputs_of_a_filter(side):
    random, size = np.random.default_rng(0), side - STEP + 1
    data, kernel = random.normal(size=side), random.normal(size=size)
    # The two-dimensional matrix contains the one-dimensional one: the entries of a corner of the kernel.
    g = kernel_matrix(size, "d").reshape(side, side, size, size)[-1, :, -1, :]
    products = (g @ kernel) * FORMULAS[side][DATA](data)
    np.testing.assert_allclose(FORMULAS[side][OUTPUTS](products), np.correlate(data, kernel), rtol=1e-12)
