"""Sandblaster with the whole inverse Hessian, BFGS and the self-scaled Broyden method: SciPy's, and plain formulas."""

from itertools import pairwise

import numpy as np
import pytest
from test_sandblaster import run
from test_sandblaster_alone import minimise, quadratic, rosenbrock

from mpidl.algorithms.curvature import self_scaling
from mpidl.algorithms.sandblaster import Sandblaster
from mpidl.engines.virtual.times import Constant, Times
from mpidl.errors import UsageError
from mpidl.parameters import shards
from mpidl.shards.matrix import Gather, Identity, Product, RankUpdate, whole
from mpidl.shards.vectors import Dot, Vectors, merged

START = np.array([-1.2, 1.0, 0.7, -0.3, 0.2, 1.4])


def directions(seen):
    """Yield for each iteration but the first the steps and the changes of the gradient before it, and its direction."""
    steps, changes = [seen[0].parameters - START], [seen[0].gradient - rosenbrock(START)[1]]
    for before, after in pairwise(seen):
        # The first trial is a step of 1.
        yield steps, changes, before.gradient, after.trials[0] - before.parameters
        steps.append(after.parameters - before.parameters)
        changes.append(after.gradient - before.gradient)


def factors(b, h, size):
    """Return phi, tau and theta of SSBroyden2 of Urbán, Stefanou, Pons 2025."""
    a = b * h - 1
    low = min(1, h * (1 - np.sqrt(abs(a) / (1 + a))))
    theta = max((low - 1) / a, min(1 / low, (1 - b) / b))
    sigma, most = 1 + theta * a, min(1, 1 / b)
    root = abs(sigma) ** (1 / (1 - size))
    tau = min(most * root, sigma) if theta <= 0 else most * min(root, 1 / theta)
    return (1 - theta) / (1 + a * theta), tau, theta


def self_scaled(inverse, s, y):
    """Return an inverse Hessian after the update SSBroyden2, and theta."""
    sy, hy = s @ y, inverse @ y
    phi, tau, theta = factors(s @ np.linalg.inv(inverse) @ s / sy, y @ hy / sy, len(s))
    v = s / sy - hy / (y @ hy)
    rest = inverse - np.outer(hy, hy) / (y @ hy) + phi * (y @ hy) * np.outer(v, v)
    return rest / tau + np.outer(s, s) / sy, theta


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_operations_on_rows_of_matrices(count):
    random = np.random.default_rng(count)
    matrix, x, columns = random.normal(size=(5, 5)), random.normal(size=5), random.normal(size=(5, 2))
    weights = np.array([[1.0, 2.0], [2.0, -3.0]])
    parts = [
        Vectors({"v": x[slice(*own)].copy(), "m": matrix[slice(*own)].copy(), "r": np.zeros(own.size)}, start=own.start)
        for own in shards(5, count)
    ]

    def carried_out(*operations):
        return merged([part.carry_out(operations) for part in parts])

    (pieces, square) = carried_out(Gather("v"), Dot((("v", "v"),)))
    np.testing.assert_array_equal(whole(pieces), x)
    assert square == pytest.approx(x @ x)
    found = carried_out(Product("r", "m", x), Gather("r"), RankUpdate("m", 0.5, columns, weights), Product("r", "m", x))
    np.testing.assert_allclose(whole(found[0]), matrix @ x)
    rows = np.concatenate([part["m"] for part in parts])
    np.testing.assert_allclose(rows, matrix / 2 + columns @ weights @ columns.T)
    np.testing.assert_allclose(np.concatenate([part["r"] for part in parts]), rows @ x)
    carried_out(Identity("m"))
    np.testing.assert_array_equal(np.concatenate([part["m"] for part in parts]), np.eye(5))


def test_directions_of_bfgs_are_those_of_scipy_and_of_l_bfgs_with_all_pairs():
    optimize = pytest.importorskip("scipy.optimize")
    seen = minimise(Sandblaster(method="bfgs"), START, [(1.0, rosenbrock)], 25)
    for steps, changes, gradient, direction in directions(seen):
        limited = optimize.LbfgsInvHessProduct(np.array(steps), np.array(changes))
        np.testing.assert_allclose(direction, -limited.matvec(gradient), rtol=1e-6, atol=1e-9)
        scipy = optimize.BFGS(init_scale=1.0)
        scipy.initialize(len(START), "inv_hess")
        for s, y in zip(steps, changes, strict=True):
            scipy.update(s, y)
        np.testing.assert_allclose(direction, -scipy.dot(gradient), rtol=1e-6, atol=1e-9)


def test_directions_of_ssbroyden_are_those_of_its_formulas():
    seen, thetas = minimise(Sandblaster(method="ssbroyden"), START, [(1.0, rosenbrock)], 25), []
    for steps, changes, gradient, direction in directions(seen):
        inverse = np.eye(len(START))
        for s, y in zip(steps, changes, strict=True):
            inverse, theta = self_scaled(inverse, s, y)
            np.testing.assert_allclose(inverse @ y, s, rtol=1e-6, atol=1e-9)
        thetas.append(theta)
        assert np.linalg.eigvalsh(inverse).min() > 0
        np.testing.assert_allclose(direction, -inverse @ gradient, rtol=1e-5, atol=1e-8)
    # Both ways of scaling occur.
    assert min(thetas) < 0 < max(thetas)


@pytest.mark.parametrize(
    ("b", "h", "expected"),
    [
        (1.0, 1.0, (1.0, 1.0)),  # the curvature was known: no update
        (2.0, 0.5, (1.5, 0.5)),  # s and Hy are parallel, and the curvature less than was thought
        (0.5, 2.0, (0.0, 1.0)),  # ... and more
    ],
)
def test_scaling_where_a_step_is_parallel_to_the_product(b, h, expected):
    assert self_scaling(b, h, 7) == pytest.approx(expected)


def test_factors_of_the_self_scaled_update():
    thetas = []
    for b in (0.05, 0.4, 0.9, 1.0, 3.0, 40.0):
        for h in (1.01 / b, 2 / b, 50 / b):
            *expected, theta = factors(b, h, 5)
            thetas.append(theta)
            assert self_scaling(b, h, 5) == pytest.approx(tuple(expected), rel=1e-9)
    assert min(thetas) < 0 < max(thetas) <= 1


@pytest.mark.parametrize("method", ["bfgs", "ssbroyden"])
@pytest.mark.parametrize("size", [1, 2, 20])
def test_a_quadratic_is_minimised(method, size):
    random = np.random.default_rng(size)
    target = random.normal(size=size)
    algorithm = Sandblaster(method=method, tolerance=1e-9)
    seen = minimise(algorithm, np.zeros(size), [(1.0, quadratic(random.uniform(0.5, 50, size), target))])
    np.testing.assert_allclose(seen[-1].parameters, target, atol=1e-8)
    assert len(seen) < 60


def test_any_number_of_servers_makes_the_same_steps(lab, least_squares):
    objectives, algorithm = [], Sandblaster(method="ssbroyden")
    for servers in (1, 2, 7):
        engine, seen = run(lab, least_squares(), algorithm, servers=servers, replicas=2, iterations=6)
        objectives.append([each.objective for each in seen])
        rows = np.concatenate([shard.vectors["inverse"] for shard in engine.shards])
        np.testing.assert_allclose(rows, rows.T, rtol=1e-9, atol=1e-12)
    for each in objectives:
        assert each == pytest.approx(objectives[0], rel=1e-9)


def test_vectors_take_their_time_to_pass_between_coordinator_and_servers(lab, least_squares):
    """Of 13 elements of float64, four go to each server, and four come from all together, in each iteration."""
    seconds = {}
    for bandwidth in (float("inf"), 1000.0):
        times = Times(compute=Constant(1.0), bandwidth=bandwidth, ranks_per_node=1)
        _, seen = run(lab, least_squares(), Sandblaster(method="ssbroyden"), servers=2, iterations=4, times=times)
        seconds[bandwidth] = seen[-1].operating
    assert seconds[float("inf")] == 0
    assert seconds[1000.0] == pytest.approx((2 * 4 + 4) * 13 * 8 / 1000, rel=0.01)


def test_batches_that_change_get_near_the_solution(lab, least_squares):
    problem = least_squares()
    algorithm = Sandblaster(method="ssbroyden", batch=0.7, overlap=0.4)
    _, seen = run(lab, problem, algorithm, replicas=3, iterations=40)
    assert seen[-1].objective < 0.2 * seen[0].objective


def test_a_history_is_for_l_bfgs_alone():
    with pytest.raises(UsageError, match=r"^history: 20, but method 'ssbroyden' keeps the whole .* 'lbfgs'$"):
        Sandblaster(method="ssbroyden", history=20)
