"""The direction of L-BFGS and the line search, against the recursion, SciPy and the strong Wolfe conditions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.algorithms.curvature import direction
from mpidl.algorithms.line_search import MoreThuente


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


def sum_of_roots(first, second):
    """Return the function of Yanai, Ozawa and Kaneko (5.4), and its slope."""

    def gamma(beta):
        return np.sqrt(1 + beta * beta) - beta

    def value(a):
        return gamma(first) * np.hypot(1 - a, second) + gamma(second) * np.hypot(a, first)

    def slope(a):
        return gamma(first) * (a - 1) / np.hypot(1 - a, second) + gamma(second) * a / np.hypot(a, first)

    return value, slope


def oscillating(a, beta=0.01, waves=39):
    """Return a corner at 1, rounded, with waves (5.3)."""
    rounded = ((a - 1) ** 2 / beta + beta) / 2
    corner = rounded if abs(a - 1) < beta else abs(a - 1)
    return corner + 2 * (1 - beta) / (waves * np.pi) * np.sin(waves * np.pi / 2 * a)


def slope_of_oscillating(a, beta=0.01, waves=39):
    corner = np.clip((a - 1) / beta, -1, 1)
    return corner + (1 - beta) * np.cos(waves * np.pi / 2 * a)


FUNCTIONS = {
    # Moré and Thuente 1994, section 5: functions 1 to 6, and their slopes.
    "first": (lambda a, b=2.0: -a / (a * a + b), lambda a, b=2.0: (a * a - b) / (a * a + b) ** 2),
    "second": (
        lambda a, b=0.004: (a + b) ** 5 - 2 * (a + b) ** 4,
        lambda a, b=0.004: 5 * (a + b) ** 4 - 8 * (a + b) ** 3,
    ),
    "third": (oscillating, slope_of_oscillating),
    "fourth": sum_of_roots(0.001, 0.001),
    "fifth": sum_of_roots(0.01, 0.001),
    "sixth": sum_of_roots(0.001, 0.01),
    "quadratic": (lambda a: (a - 3) ** 2, lambda a: 2 * (a - 3)),
    "steep": (lambda a: np.exp(8 * a) - 9 * a, lambda a: 8 * np.exp(8 * a) - 9),
}
#: The constants of the conditions, and from each first step the numbers of evaluations and the accepted steps.
STEPS = (1e-3, 1e-1, 1e1, 1e3)
TABLES = {
    "first": ((1e-3, 1e-1), (6, 3, 1, 4), (1.4, 1.4, 10, 37)),
    "second": ((1e-1, 1e-1), (12, 8, 8, 11), (1.6, 1.6, 1.6, 1.6)),
    "third": ((1e-1, 1e-1), (12, 12, 10, 13), (1.0, 1.0, 1.0, 1.0)),
    "fourth": ((1e-3, 1e-3), (4, 1, 3, 4), (0.085, 0.10, 0.35, 0.83)),
    "fifth": ((1e-3, 1e-3), (6, 3, 7, 8), (0.075, 0.078, 0.073, 0.076)),
    "sixth": ((1e-3, 1e-3), (13, 11, 8, 11), (0.93, 0.93, 0.92, 0.92)),
}


def tried(settings, functions, step):
    """Return what a search accepts on a function and its slope, and the steps that it tried."""
    value, slope = functions
    return follow(settings.search(value(0.0), slope(0.0), step), lambda a: (value(a), slope(a)))


@pytest.mark.parametrize("name", TABLES)
def test_evaluations_and_steps_are_those_of_the_papers_tables(name):
    (decrease, curvature), evaluations, accepted = TABLES[name]
    settings = MoreThuente(decrease, curvature, width=1e-10)
    found = [tried(settings, FUNCTIONS[name], step) for step in STEPS]
    assert tuple(len(trials) for _, trials in found) == evaluations
    # The tables have two digits.
    assert [point.step for point, _ in found] == pytest.approx(accepted, rel=0.03)


@pytest.mark.parametrize("step", [1e-3, 0.1, 1.0, 10.0, 1000.0])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("curvature", [0.1, 0.9])
def test_the_accepted_step_meets_the_strong_wolfe_conditions(name, step, curvature):
    value, slope = FUNCTIONS[name]
    if name == "steep" and step > 50:
        step = 50.0
    settings = MoreThuente(curvature=curvature, width=1e-10)
    accepted, trials = tried(settings, FUNCTIONS[name], step)
    assert accepted.value <= value(0) + settings.decrease * accepted.step * slope(0)
    assert abs(accepted.slope) <= curvature * abs(slope(0))
    assert len(trials) <= 13


def ripples(seed):
    """Return a parabola with waves, and its slope, which is negative at 0."""
    random = np.random.default_rng(seed)
    bend, drop, height = random.uniform(0.01, 1), random.uniform(0.05, 3), random.uniform(-1, 1)
    pace = random.uniform(0.5, 10)
    fall = drop - height * pace

    def value(a):
        return bend * a * a - fall * a - height * np.sin(pace * a)

    def slope(a):
        return 2 * bend * a - fall - height * pace * np.cos(pace * a)

    return value, slope


@pytest.mark.parametrize(
    "settings", [MoreThuente(), MoreThuente(0.1, 0.1, 1e-10), MoreThuente(0.4, 0.5, 1e-10), MoreThuente(0.3, 0.3)]
)
def test_steps_are_those_of_scipy(settings):
    """Its dcsrch, evaluation by evaluation, on the paper's functions and on random ones."""
    line_search = pytest.importorskip("scipy.optimize._dcsrch")
    names = ("first", "second", "third", "quadratic", "steep")
    for functions in (*(FUNCTIONS[name] for name in names), *map(ripples, range(60))):
        for step in (1e-3, 0.1, 1.0, 10.0):
            expected, (value, slope) = [], functions

            def phi(a, value=value, expected=expected):
                expected.append(a)
                return value(a)

            reference = line_search.DCSRCH(phi, slope, settings.decrease, settings.curvature, settings.width, 0.0, 1e10)
            *_, task = reference(step, phi0=value(0.0), derphi0=slope(0.0), maxiter=settings.most + 1)
            accepted, found = tried(settings, functions, step)
            # It evaluates once more before it ends without meeting the conditions.
            converged = task.startswith(b"CONV")
            np.testing.assert_allclose(found, expected if converged else expected[:-1], rtol=1e-9)
            if converged:
                assert accepted.step == found[-1]
            else:
                enough = [a for a in found if value(a) <= value(0.0) + settings.decrease * a * slope(0.0)]
                assert (accepted and accepted.step) == min(enough, key=value, default=None)


def test_no_step_is_found_where_there_is_none():
    accepted, _ = follow(MoreThuente().search(0.0, -1.0, 1.0), lambda a: (a + 1.0, 1.0))
    assert accepted is None
