"""Replicas that make as many steps in a round as their speeds allow, on the virtual engine in float64."""

import numpy as np
import pytest

from mpidl.algorithms import Averaging, Diloco, Fedprox
from mpidl.engines.virtual.times import Constant, Times
from mpidl.rules import Nesterov, Sgd

#: Seconds that each replica needs for a gradient, and the steps that it makes in a round of 12 seconds.
SECONDS, STEPS, WINDOW = (1.0, 3.01, 1.52), (12, 3, 7), 12
UNEVEN = Times(Constant(1.0), slow=dict(enumerate(SECONDS)))


def rounds(lab, problem, epochs):
    """Yield the batches of each replica in each round; in the first, all make the same number of steps."""
    batches, order = lab.batches(problem, epochs), {0: 0.0, 1: 1.0, 2: 2.0}
    counts = (WINDOW,) * 3
    while batches:
        # The replica that has waited longest takes the first batch.
        takes = sorted((i * SECONDS[r], order[r], r) for r in range(3) for i in range(counts[r]))
        parts = [[], [], []]
        for (_, _, r), indices in zip(takes, batches, strict=False):
            parts[r].append(indices)
        yield parts
        batches = batches[len(takes) :]
        order, counts = {r: counts[r] * SECONDS[r] for r in range(3)}, STEPS


@pytest.mark.parametrize("name", ["averaging", "fedprox", "diloco"])
def test_replicas_count_by_their_steps(lab, least_squares, name):
    rate, epochs = 0.02, 6
    algorithm = {
        "averaging": Averaging(rate=rate, tau=WINDOW, inner="sgd", dynamic=True),
        "fedprox": Fedprox(rate=rate, window=WINDOW, mu=0.3, inner="sgd", dynamic=True),
        "diloco": Diloco(rate=rate, window=WINDOW, inner="sgd", dynamic=True),
    }[name]
    rule = Nesterov(0.7, 0.9) if name == "diloco" else Sgd(1.0)
    found = lab.trained(least_squares(), algorithm, rule=rule, replicas=3, epochs=epochs, times=UNEVEN)
    problem = least_squares()
    x = problem[0].parameters.copy()
    velocity, seen = rule.init(x), []
    for number, parts in enumerate(rounds(lab, problem, epochs), 1):
        results, weights = [], []
        for part in parts:
            own = x.copy()
            for indices in part:
                pull = 0.3 * (own - x) if name == "fedprox" else 0.0
                own -= rate * (lab.gradient(problem, own, indices) + pull)
            if part:
                results.append(own)
                weights.append(len(part))
        seen.append(tuple(map(len, parts)))
        mean = np.average(results, axis=0, weights=weights)
        if name == "diloco":
            rule.update(x, velocity, x - mean, number)
        else:
            x = mean
    assert seen[0] == (12, 12, 12)
    assert seen[1] == STEPS
    assert found == pytest.approx(x, rel=1e-12)


def test_all_replicas_end_a_round_together(lab, tally):
    """After the first round, which takes as long as the slowest replica, each takes as long as the fastest."""

    def seconds(dynamic):
        algorithm = Averaging(rate=1.0, tau=WINDOW, inner="sgd", dynamic=dynamic)
        engine = lab.engine(tally(), algorithm, replicas=3, epochs=24, times=UNEVEN)
        totals = engine.run()
        assert totals.samples == 24 * 101
        return totals.seconds

    # 36 batches in 36 s, or 22 in 12 s but for the first round and the last.
    assert seconds(False) == pytest.approx(24 * 13 * 3.01 / 3, rel=0.1)
    assert seconds(True) == pytest.approx(36 + (24 * 13 - 36) * 12 / 22, rel=0.1)


def test_replicas_of_equal_speed_are_as_without(lab, least_squares):
    options = {"replicas": 3, "times": Times(Constant(1.0), Constant(0.25))}
    for settings in ({"tau": 4}, {"tau": 1}):
        found = lab.trained(least_squares(), Averaging(inner="sgd", dynamic=True, **settings), **options)
        without = lab.trained(least_squares(), Averaging(inner="sgd", **settings), **options)
        assert found == pytest.approx(without, rel=1e-12)
