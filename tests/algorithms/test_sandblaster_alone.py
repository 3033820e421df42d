"""Sandblaster's coordinator without an engine, on functions whose right steps are known from SciPy or by hand."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest

from mpidl.algorithms.coordination import Evaluate, EvaluationResult, Iteration, Operate
from mpidl.algorithms.requests import drive
from mpidl.algorithms.sandblaster import Sandblaster
from mpidl.shards.vectors import Vectors


class Seen(NamedTuple):
    """An iteration, parameters and gradient at its report, and all parameters evaluated since the one before."""

    report: Iteration
    parameters: np.ndarray
    gradient: np.ndarray
    trials: list


def minimise(algorithm, start, portions, most=100):
    """Return what is seen; `portions` are pairs of a weight and a function of x that returns value and gradient."""
    vectors = {name: np.zeros(len(start)) for name in ("parameters", *algorithm.vectors())}
    vectors |= {name: np.zeros((len(start), len(start))) for name in algorithm.matrices()}
    vectors["parameters"][:] = start
    shard, seen, trials = Vectors(vectors), [], []

    def operate(request):
        yield from ()
        return shard.carry_out(request.operations)

    def evaluate(request):
        yield from ()
        trials.append(vectors["parameters"].copy())
        losses, weights = np.zeros((2, len(request.segments)))
        for number, segment in enumerate(request.segments):
            vectors[segment.vector][:] = 0
            for portion in range(segment.first, segment.first + segment.count):
                weight, function = portions[portion % len(portions)]
                value, gradient = function(trials[-1])
                losses[number] += weight * value
                weights[number] += weight
                vectors[segment.vector] += weight * gradient
        counts = [segment.count for segment in request.segments]
        return EvaluationResult(tuple(losses), tuple(weights), tuple(counts), sum(counts), 0, 0, 0.0)

    def iterate(request):
        yield from ()
        seen.append(Seen(request, vectors["parameters"].copy(), vectors["gradient"].copy(), trials.copy()))
        trials.clear()
        return len(seen) == most

    actions = {Operate: operate, Evaluate: evaluate, Iteration: iterate}
    assert list(drive(algorithm.coordinator(len(portions)), actions)) == []
    return seen


def quadratic(scale, target):
    """Return the function sum of scale (x - target)^2 / 2."""
    return lambda x: (float(scale @ (x - target) ** 2) / 2, scale * (x - target))


def rosenbrock(x):
    """Return the value of Rosenbrock's function in pairs of variables, and its gradient."""
    a, b = x[::2], x[1::2]
    gradient = np.empty_like(x)
    gradient[::2], gradient[1::2] = -400 * a * (b - a * a) - 2 * (1 - a), 200 * (b - a * a)
    return float(np.sum(100 * (b - a * a) ** 2 + (1 - a) ** 2)), gradient


def concave(x):
    """Return the value of a concave function, and its gradient."""
    root = np.sqrt(1 + x @ x)
    return -0.5 * float(root), -0.5 * x / root


def rising(function, place, before):
    """Return a function that rises from a place on, for the 20 evaluations of one search after those `before`."""
    calls = []

    def evaluate(x):
        calls.append(x)
        distance = np.linalg.norm(x - place)
        if before < len(calls) <= before + 20:
            return function(place)[0] + 0.1 * float(distance), 0.1 * (x - place) / distance
        return function(x)

    return evaluate


def test_a_quadratic_is_minimised():
    random = np.random.default_rng(1)
    target = random.normal(size=20)
    portions = [(1.0, quadratic(random.uniform(0.5, 5, 20), target))]
    seen = minimise(Sandblaster(history=5, tolerance=1e-6), np.zeros(20), portions)
    np.testing.assert_allclose(seen[-1].parameters, target, atol=1e-6)
    assert [each.report.number for each in seen] == list(range(1, len(seen) + 1))
    assert len(seen) < 30
    # The run ends with the first gradient below the tolerance.
    norms = [float(np.linalg.norm(each.gradient)) for each in seen]
    assert [each.report.gradient_norm for each in seen] == pytest.approx(norms)
    assert norms[-1] <= 1e-6 < norms[-2]


@pytest.mark.parametrize("history", [1, 4, 10])
def test_iterations_on_rosenbrocks_function_are_those_of_l_bfgs_b(history):
    optimize = pytest.importorskip("scipy.optimize")
    start, expected, count = np.array([-1.2, 1.0, 0.7, -0.3]), [], 30
    optimize.minimize(
        rosenbrock, start, jac=True, method="L-BFGS-B", callback=lambda x: expected.append(x.copy()),
        options={"maxcor": history, "maxiter": count, "ftol": 0, "gtol": 0},
    )  # fmt: skip
    seen = minimise(Sandblaster(history=history), start, [(1.0, rosenbrock)], count)
    np.testing.assert_allclose([each.parameters for each in seen], expected, rtol=1e-5)
    totals = np.cumsum([len(each.trials) for each in seen])
    assert [each.report.evaluations for each in seen] == [len(each.trials) for each in seen]
    assert [each.report.total_evaluations for each in seen] == totals.tolist()


@pytest.mark.parametrize(("place", "left", "right"), [(1.5, 1.0, 2.0), (7.3, 1.0, 2.0), (1.5, 0.5, 5.0)])
def test_a_failed_search_goes_back_to_its_best_step(place, left, right):
    """At a corner no slope is small enough. The gradients of both points of a pair are equal: it has no curvature."""

    def corner(x):
        slope = np.where(x < place, -left, right)
        return float(slope @ (x - place)), slope

    first = minimise(Sandblaster(), np.zeros(1), [(1.0, corner)], 1)[0]
    tried = [(corner(x)[0], float(x[0])) for x in first.trials]
    value, best = min(tried)
    # It is neither the first nor the last trial, and evaluated again.
    assert tried.count((value, best)) == 2
    assert (first.report.objective, first.parameters[0], first.gradient[0]) == (value, best, -left)
    assert best == first.report.step * left
    assert first.report.state["order"] == []


#: Each method, and in a coordinator's state what it has learnt: nothing, and after three steps.
METHODS = [("lbfgs", "order", [], [0, 1, 2]), ("bfgs", "updates", 0, 3), ("ssbroyden", "updates", 0, 3)]


@pytest.mark.parametrize(("method", "key", "nothing", "learnt"), METHODS)
def test_steps_without_curvature_teach_nothing(method, key, nothing, learnt):
    """On a concave function each search only ends with its last trial (Liu and Nocedal 1989: s'y > 0)."""
    seen = minimise(Sandblaster(method=method), np.array([0.1, 0.2]), [(1.0, concave)], 3)
    assert [each.report.state[key] for each in seen] == [nothing] * 3
    for before, after in pairwise(seen):
        # A step of 1 along the negative gradient, whose length is less than 1.
        np.testing.assert_allclose(after.trials[0] - before.parameters, -before.gradient, rtol=1e-3)


@pytest.mark.parametrize(("method", "key", "nothing", "learnt"), METHODS)
def test_where_no_step_decreases_the_objective_the_search_begins_anew(method, key, nothing, learnt):
    function, start = quadratic(np.array([1.0, 30.0, 0.1]), np.array([1.0, 2.0, 3.0])), np.zeros(3)
    algorithm = Sandblaster(method=method)
    plain = minimise(algorithm, start, [(1.0, function)], 3)
    place, before = plain[-1].parameters, sum(len(each.trials) for each in plain)
    *_, third, again, fourth = minimise(algorithm, start, [(1.0, rising(function, place, before))], 5)
    assert (third.report.state[key], again.report.state[key]) == (learnt, nothing)
    assert (third.report.number, again.report.number, fourth.report.number) == (3, 3, 4)
    np.testing.assert_array_equal(again.parameters, place)
    np.testing.assert_array_equal(again.gradient, third.gradient)
    step = min(1, 1 / np.linalg.norm(again.gradient))
    np.testing.assert_allclose(fourth.trials[0], again.parameters - step * again.gradient)


@pytest.mark.parametrize(("offset", "searches"), [(1e12, True), (1e13, False)])
def test_a_search_begins_where_its_step_promises_more_than_rounding(offset, searches):
    """The first step has length 1, and promises a decrease of 1e-3."""
    function = quadratic(np.array([1e-3]), np.array([1.0]))

    def high(x):
        value, gradient = function(x)
        return offset + value, gradient

    assert bool(minimise(Sandblaster(), np.zeros(1), [(1.0, high)], 1)) is searches


def test_a_run_ends_where_only_rounding_is_left_and_does_not_begin_anew():
    random = np.random.default_rng(2)
    function = quadratic(random.uniform(0.5, 5, 20), random.normal(size=20))

    def above_one(x):
        value, gradient = function(x)
        return 1 + value, gradient

    seen = minimise(Sandblaster(), np.zeros(20), [(1.0, above_one)])
    assert [each.report.number for each in seen] == list(range(1, len(seen) + 1))
    assert seen[-1].report.objective == pytest.approx(1, rel=1e-14)
    assert len(seen) < 40


@pytest.mark.parametrize("overlap", [0.2, 0.4])
def test_a_batch_weighs_its_portions_and_is_compared_on_what_it_shares(overlap):
    """Objectives and gradients are weighted means; those of the shared part decrease (Berahas et al. 2016)."""
    random = np.random.default_rng(3)
    targets, scales = random.normal(size=(10, 4)), random.uniform(0.1, 3, (10, 4))
    weights = random.uniform(0.1, 5, 10).tolist()
    portions = list(zip(weights, map(quadratic, scales, targets), strict=True))

    def mean(x, first, count):
        part = [portions[number % 10] for number in range(first, first + count)]
        sums = [(weight * value, weight * gradient) for weight, (value, gradient) in ((w, f(x)) for w, f in part)]
        total = sum(weight for weight, _ in part)
        return sum(value for value, _ in sums) / total, sum(gradient for _, gradient in sums) / total

    shared = round(5 * overlap)
    seen = minimise(Sandblaster(batch=0.5, overlap=overlap), np.full(4, 3.0), portions, 12)
    for each in seen:
        first = int(each.report.state["batch"]) * (5 - shared)
        value, gradient = mean(each.parameters, first, 5)
        assert each.report.objective == pytest.approx(value, rel=1e-12)
        np.testing.assert_allclose(each.gradient, gradient, rtol=1e-10, atol=1e-14)
    steps = [(a, b) for a, b in pairwise(seen) if b.report.number > a.report.number]
    assert len(steps) > 8
    for before, after in steps:
        first = int(after.report.state["batch"]) * (5 - shared)
        old, slope = mean(before.parameters, first, shared)
        new, _ = mean(after.parameters, first, shared)
        assert new <= old + 1e-3 * slope @ (after.parameters - before.parameters) + 1e-15
