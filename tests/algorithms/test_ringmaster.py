"""Ringmaster ASGD against the loops of its paper, event by event: the bits, and the times."""

from math import inf, isqrt, sqrt

import numpy as np
import pytest

import mpidl
from mpidl.algorithms import ALGORITHMS
from mpidl.config import from_dict
from mpidl.engines.progress import StoppedGradients
from mpidl.engines.virtual.times import Constant, Times
from mpidl.rules import Sgd

Ringmaster = ALGORITHMS["ringmaster"]
WORKERS, RATE = 5, 0.05
#: As the authors' times, without integers, so that no two gradients end together.
TAU = [1 + sqrt(number) for number in (2, 3, 5, 6, 7)]
TIMES = Times(Constant(1.0), slow=dict(enumerate(TAU)))


def of_paper(lab, problem, threshold, stops, weight=lambda k: 1.0, epochs=3):
    """Run algorithm 5 of the paper or, without stops, 4; return the parameters and the number of gradients lost."""
    batches = iter(lab.batches(problem, epochs))
    x = problem[0].parameters.copy()
    k = lost = 0
    # Of each worker: when its gradient is complete, the number of updates before, its point and its batch.
    active = {number: [tau, 0, x.copy(), next(batches)] for number, tau in enumerate(TAU)}
    while active:
        number = min(active, key=lambda each: active[each][0])
        now, before, point, batch = active[number]
        gradient = lab.gradient(problem, point, batch)
        if stops or k - before < threshold(k):
            x = x - RATE * weight(k) * gradient
            k += 1
        else:
            lost += 1
        batch = next(batches, None)
        if batch is None:
            del active[number]
        else:
            active[number] = [now + TAU[number], k, x.copy(), batch]
        for other, (_, before, _, own) in active.items():
            if stops and k - before >= threshold(k):
                active[other] = [now + TAU[other], k, x.copy(), own]
                lost += 1
    return x, lost


@pytest.mark.parametrize("bound", [1, 2, 3, 5])
@pytest.mark.parametrize("stops", [True, False])
def test_it_is_the_loop_of_the_paper(lab, least_squares, bound, stops):
    engine = lab.engine(
        least_squares(), Ringmaster(bound, stops), rule=Sgd(RATE), replicas=WORKERS, times=TIMES, epochs=3
    )
    totals = engine.run()
    expected, lost = of_paper(lab, least_squares(), lambda k: bound, stops)
    assert lost > 0
    assert np.array_equal(engine.parameters(), expected)
    assert totals.spent.stopped == (lost if stops else 0)
    assert totals.shards.dropped == (0 if stops else 2 * lost)  # on each of two shards


def test_the_adaptive_threshold_and_rates(lab, least_squares):
    engine = lab.engine(
        least_squares(), Ringmaster(adaptive=True), rule=Sgd(RATE), replicas=WORKERS, times=TIMES, epochs=3
    )
    totals = engine.run()
    expected, lost = of_paper(lab, least_squares(), lambda k: max(1, isqrt(k)), True, lambda k: (k + 1) ** -0.75)
    assert totals.spent.stopped == lost > 0
    np.testing.assert_allclose(engine.parameters(), expected, rtol=1e-12)


def test_the_least_delay_given_the_clock_at_the_fetch():
    adaptive = Ringmaster(adaptive=True)
    for clock in range(60):
        found = adaptive.least_delay(5, clock)
        assert found == min(delay for delay in range(1, 60) if delay >= max(1, isqrt(clock + delay)))
    assert Ringmaster(7).least_delay(5, 100) == 7
    assert Ringmaster().least_delay(5, 100) == 10


def test_a_large_threshold_is_downpour(lab, least_squares):
    options = {"rule": Sgd(RATE), "replicas": 3, "times": lab.random_times}
    expected = lab.trained(least_squares(), ALGORITHMS["downpour"](), **options)
    for stops in (True, False):
        assert np.array_equal(lab.trained(least_squares(), Ringmaster(10**6, stops), **options), expected)


def test_each_batch_is_used_once(lab, tally):
    problem = tally()
    engine = lab.engine(
        problem, Ringmaster(2), rule=Sgd(1.0), replicas=2, times=Times(Constant(1.0), slow={1: 3.5}), epochs=2
    )
    totals = engine.run()
    assert totals.spent.stopped > 10
    assert totals.samples == 2 * problem[1].samples
    expected = lab.trained(tally(), Ringmaster(100), rule=Sgd(1.0), replicas=1)
    np.testing.assert_allclose(engine.parameters(), expected)


def test_the_rest_of_stopped_gradients_is_saved(lab, least_squares, monkeypatch):
    """A gradient of 1.9 s is complete, or is stopped before, after 2 of 1 s."""
    seconds, stop = [], StoppedGradients.stop
    monkeypatch.setattr(StoppedGradients, "stop", lambda self, spent: (seconds.append(spent), stop(self, spent)))
    engine = lab.engine(
        least_squares(), Ringmaster(2), rule=Sgd(RATE), replicas=2, times=Times(Constant(1.0), slow={1: 1.9}), epochs=3
    )
    totals = engine.run()
    assert totals.spent.stopped == len(seconds) > 3
    assert min(seconds) < 1.9
    assert totals.spent.saved_seconds == pytest.approx(sum(1.9 - each for each in seconds))


JOB = {"data": {"source": "digits"}, "model": {"layer": [{"type": "dense", "units": 10}]}}


def test_settings():
    with pytest.raises(mpidl.UsageError, match=r"^algorithm.adaptive: true, but stops is false, expected true$"):
        from_dict({**JOB, "algorithm": {"name": "ringmaster", "adaptive": True, "stops": False}})
    with pytest.raises(mpidl.UsageError, match=r"^algorithm.stops: true depends on timing, which rules out run.determ"):
        from_dict({**JOB, "algorithm": {"name": "ringmaster"}, "run": {"deterministic": True}})
    assert Ringmaster(3, stops=False).shard_policy(2).bound == 2
    assert Ringmaster(3).shard_policy(2).bound == inf
