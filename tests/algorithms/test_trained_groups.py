"""Groups of parameters: rates, weight decay and frozen parameters, with every algorithm on the virtual engine."""

import numpy as np
import pytest

from mpidl.algorithms import ALGORITHMS, Diloco, Downpour, Eamsgd, Sandblaster
from mpidl.engines.virtual.times import Exponential, Times
from mpidl.nn.groups import Penalised
from mpidl.parameters import Range
from mpidl.rules import Adagrad, Adamw, Nesterov, Sgd
from mpidl.rules.segments import Segment

TIMES = Times(compute=Exponential(1.0), latency=Exponential(0.1))
#: Of 13 parameters; two servers cut at 7.
SEGMENTS = [
    Segment(Range(1, 3), rate=0.1),
    Segment(Range(5, 8), frozen=True),
    Segment(Range(9, 11), rate=2.0, weight_decay=0.3),
    Segment(Range(11, 12), weight_decay=0.0),
]
FROZEN = slice(5, 8)
RATES = np.ones(13)
RATES[1:3], RATES[5:8], RATES[9:11] = 0.1, 0.0, 2.0
OF_BOTH = {"of_shards": {"segments": SEGMENTS}, "of_steps": {"segments": SEGMENTS}}


def decays(default):
    """Return the weight decay of each parameter."""
    decay = np.full(13, default)
    decay[9:11], decay[11] = 0.3, 0.0
    return decay


def problem_of(least_squares, algorithm):
    """Return a problem that begins away from 0."""
    model, split = least_squares()
    model.parameters[:] = np.random.default_rng(1).normal(size=13)
    return (Penalised(model, SEGMENTS) if algorithm.coordinated else model), split


@pytest.mark.parametrize("servers", [1, 2, 5])
@pytest.mark.parametrize("name", ["sgd", "adagrad", "adamw"])
def test_the_trajectory_is_that_of_numpy(name, servers, lab, least_squares):
    rate, step, sums = 0.05, 0, np.zeros((2, 13))

    def sgd(x, gradient):
        return x - rate * RATES * (gradient(x) + decays(0.0) * x)

    def adagrad(x, gradient):
        g = gradient(x) + decays(0.0) * x
        sums[0] += g * g
        return x - rate * RATES * g / np.sqrt(sums[0])

    def adamw(x, gradient):
        nonlocal step
        step, g = step + 1, gradient(x)
        sums[0] = 0.9 * sums[0] + 0.1 * g
        sums[1] = 0.999 * sums[1] + 0.001 * g * g
        m, v = sums[0] / (1 - 0.9**step), sums[1] / (1 - 0.999**step)
        return x - rate * RATES * (m / (np.sqrt(v) + 1e-8) + decays(0.01) * x)

    rule, reference = {"sgd": (Sgd(rate), sgd), "adagrad": (Adagrad(rate), adagrad), "adamw": (Adamw(rate), adamw)}[
        name
    ]
    algorithm = Downpour()
    found = lab.trained(problem_of(least_squares, algorithm), algorithm, rule=rule, servers=servers, chunk=2, **OF_BOTH)
    expected = lab.serial(problem_of(least_squares, algorithm), reference)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert found.tobytes() == lab.trained(
        problem_of(least_squares, algorithm), algorithm, rule=rule, servers=1, **OF_BOTH
    ).tobytes()  # fmt: skip


#: Where servers' pushes carry what is not 0 for frozen parameters, and weight decay that isn't asked for would act.
CASES = [
    *((cls(), None) for name, cls in ALGORITHMS.items() if name != "stacking"),
    (Downpour(n_push=3, rate=0.05, wire="onebit"), Adamw(0.01, weight_decay=0.5)),
    (ALGORITHMS["easgd"](asynchronous=False), None),
    (ALGORITHMS["easgd"](wire="onebit"), None),
    (Diloco(asynchronous=True, wire="onebit", delay=3), Nesterov(0.7, 0.9)),
    (Diloco(window=3), Adamw(0.1, weight_decay=0.5)),
]


@pytest.mark.parametrize(("algorithm", "rule"), CASES, ids=[f"{i}-{case[0].name}" for i, case in enumerate(CASES)])
def test_frozen_parameters_keep_their_bits_and_the_others_train(algorithm, rule, lab, least_squares):
    problem = problem_of(least_squares, algorithm)
    before = problem[0].parameters.copy()
    outer = {"of_shards": {"segments": [Segment(Range(5, 8), frozen=True)]}} if algorithm.outer else {}
    if rule is None and algorithm.default_rule is not None:
        rule = algorithm.default_rule
    servers = 1 if algorithm.name == "hogwild" or algorithm.wire == "onebit" else 2
    # Means of seven equal numbers are not always that number.
    engine = lab.engine(
        problem, algorithm, rule=rule, replicas=7, servers=servers, epochs=2, times=TIMES, **(OF_BOTH | outer)
    )
    engine.run()
    found = engine.parameters()
    assert found[FROZEN].tobytes() == before[FROZEN].tobytes()
    moved = np.flatnonzero(found != before)
    assert set(range(13)) - set(range(13)[FROZEN]) == set(moved.tolist())
    assert np.isfinite(found).all()


def test_the_momentum_of_eamsgd_looks_ahead_by_each_groups_rate(lab, least_squares):
    problem, velocity = least_squares(), np.zeros(13)
    rates = 0.02 * RATES

    def nesterov(x, gradient):
        nonlocal velocity
        g = gradient(x - 0.9 * rates * velocity)
        velocity = 0.9 * velocity + g + decays(0.0) * x
        return x - rates * velocity

    model = least_squares()[0]
    model.parameters[:] = problem[0].parameters[:] = np.random.default_rng(1).normal(size=13)
    kept = problem[0].parameters
    engine = lab.engine(problem, Eamsgd(rate=0.02, alpha=0.0), servers=1, **OF_BOTH)
    states = [replica.state for replica in engine.replicas]
    engine.run()
    expected = lab.serial((model, problem[1]), nesterov)
    np.testing.assert_allclose(states[0].vectors()["x"], expected, rtol=1e-11)
    assert kept is engine.replicas[0].parameters


def test_an_outer_rule_ignores_rates_and_the_inner_steps_have_them(lab, least_squares):
    outer = {"of_steps": {"segments": SEGMENTS}}
    algorithm = Diloco(rate=0.05, window=1, inner="sgd")
    found = lab.trained(problem_of(least_squares, algorithm), algorithm, rule=Sgd(1.0), **outer)

    def sgd(x, gradient):
        return x - 0.05 * RATES * (gradient(x) + decays(0.0) * x)

    expected = lab.serial(problem_of(least_squares, algorithm), sgd)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_line_search_minimises_the_function_with_weight_decay(lab, least_squares):
    algorithm = Sandblaster(history=13)
    problem = problem_of(least_squares, algorithm)
    start = problem[0].parameters.copy()
    found = lab.trained(problem, algorithm, epochs=60)
    x, y = (np.asarray(each, float) for each in problem[1].gather(np.arange(problem[1].samples))[:2])
    free = np.ones(13, bool)
    free[FROZEN] = False
    decay = np.diag(decays(0.0)[free])
    rest = y[:, 0] - x[:, FROZEN] @ start[FROZEN]
    expected = np.linalg.solve(x[:, free].T @ x[:, free] / len(x) + decay, x[:, free].T @ rest / len(x))
    np.testing.assert_allclose(found[free], expected, rtol=1e-4)
