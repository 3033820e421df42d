"""The direction of L-BFGS and the line search, against the recursion, SciPy and the strong Wolfe conditions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.algorithms.lbfgs import MoreThuente, direction


def history(k, size, seed):
    """Return pairs of positive curvature and a gradient."""
    random = np.random.default_rng(seed)
    root = random.normal(size=(size, size))
    hessian = root @ root.T + np.eye(size)
    s = random.normal(size=(k, size))
    return s, s @ hessian, random.normal(size=size)


def two_loop(s, y, g, scaled=True):
    """Nocedal and Wright, algorithm 7.4."""
    q, alpha = g.copy(), np.zeros(len(s))
    for i in reversed(range(len(s))):
        alpha[i] = s[i] @ q / (s[i] @ y[i])
        q -= alpha[i] * y[i]
    if len(s) and scaled:
        q *= s[-1] @ y[-1] / (y[-1] @ y[-1])
    for i in range(len(s)):
        q += s[i] * (alpha[i] - y[i] @ q / (s[i] @ y[i]))
    return -q


@given(k=st.integers(0, 10), size=st.integers(11, 40), seed=st.integers(0, 99))
def test_the_direction_is_that_of_the_two_loop_recursion(k, size, seed):
    s, y, g = history(k, size, seed)
    basis = np.concatenate([s, y, g[None]])
    found, expected = direction(basis @ basis.T) @ basis, two_loop(s, y, g)
    assert np.linalg.norm(found - expected) <= 1e-12 * np.linalg.norm(expected) * np.linalg.cond(basis) ** 0.5


def test_the_recursion_is_scipys_without_scaling():
    optimize = pytest.importorskip("scipy.optimize")
    s, y, g = history(5, 17, 3)
    np.testing.assert_allclose(two_loop(s, y, g, scaled=False), -(optimize.LbfgsInvHessProduct(s, y) @ g), rtol=1e-12)


def follow(search, function):
    """Return what a search accepts, and the steps that it tried."""
    trials = [next(search)]
    try:
        while True:
            trials.append(search.send(function(trials[-1])))
    except StopIteration as end:
        return end.value, trials


FUNCTIONS = {
    # Moré and Thuente 1994, section 5: functions 1 to 3, and their slopes.
    "first": (lambda a, b=2.0: -a / (a * a + b), lambda a, b=2.0: (a * a - b) / (a * a + b) ** 2),
    "second": (
        lambda a, b=0.004: (a + b) ** 5 - 2 * (a + b) ** 4,
        lambda a, b=0.004: 5 * (a + b) ** 4 - 8 * (a + b) ** 3,
    ),
    "quadratic": (lambda a: (a - 3) ** 2, lambda a: 2 * (a - 3)),
    "steep": (lambda a: np.exp(8 * a) - 9 * a, lambda a: 8 * np.exp(8 * a) - 9),
}


@pytest.mark.parametrize("step", [1e-3, 0.1, 1.0, 10.0, 1000.0])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("curvature", [0.1, 0.9])
def test_the_accepted_step_meets_the_strong_wolfe_conditions(name, step, curvature):
    value, slope = FUNCTIONS[name]
    if name == "steep" and step > 50:
        step = 50.0
    settings = MoreThuente(curvature=curvature, width=1e-10)
    search = settings.search(value(0.0), slope(0.0), step)
    accepted, trials = follow(search, lambda a: (value(a), slope(a)))
    assert accepted.value <= value(0) + settings.decrease * accepted.step * slope(0)
    assert abs(accepted.slope) <= curvature * abs(slope(0))
    assert len(trials) <= 12


def test_steps_are_those_of_scipy():
    """Its dcsrch, evaluation by evaluation, on the paper's functions."""
    line_search = pytest.importorskip("scipy.optimize._dcsrch")
    for value, slope in FUNCTIONS.values():
        for step in (1e-3, 0.1, 1.0, 10.0):
            expected = []

            def phi(a, value=value, expected=expected):
                expected.append(a)
                return value(a)

            line_search.DCSRCH(phi, slope, 1e-3, 0.9, 0.1, 0.0, 1e10)(step, phi0=value(0.0), derphi0=slope(0.0))
            search = MoreThuente().search(value(0.0), slope(0.0), step)
            _, found = follow(search, lambda a, value=value, slope=slope: (value(a), slope(a)))
            np.testing.assert_allclose(found, expected[: len(found)], rtol=1e-9)


def test_no_step_is_found_where_there_is_none():
    accepted, _ = follow(MoreThuente().search(0.0, -1.0, 1.0), lambda a: (a + 1.0, 1.0))
    assert accepted is None
