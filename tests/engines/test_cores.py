"""Processor sharing against schedules worked out by hand, and by a fluid that flows step by step."""

from fractions import Fraction

import pytest
import simpy
from hypothesis import assume, given
from hypothesis import strategies as st

from mpidl.engines.virtual.cores import Cores

COUNTS = st.integers(1, 4)
SECONDS = st.floats(0.001, 5)


def play(count, jobs, origin=0.0):
    """Run jobs, (start, seconds, urgent) each, and return when they end."""
    environment = simpy.Environment(origin)
    cores = Cores(environment, count)
    ends = {}

    def job(i, start, seconds, urgent):
        yield environment.timeout(start)
        yield cores.work(seconds, urgent)
        assert i not in ends
        ends[i] = environment.now - origin

    for i, each in enumerate(jobs):
        environment.process(job(i, *each))
    steps = 0
    while environment.peek() < float("inf"):
        environment.step()
        steps += 1
        assert steps < 20 * len(jobs) + 20, "time stands still"
    return [ends[i] for i in range(len(jobs))]


def flow(count, jobs):
    """Return when the jobs end, exactly: a fluid that flows at constant rates from one change to the next.

    Also return the least time between an urgent job's start and another one's start, or its end had the urgent one not
    started, and between the ends of those of which it displaces one: rounding may swap the two where that is short.
    """
    left = [Fraction(seconds) for _, seconds, _ in jobs]
    starts = [Fraction(start) for start, _, _ in jobs]
    ends, now, seen, parked = {}, min(starts), set(), {}
    gaps = [abs(start - other) for i, start in enumerate(starts) if jobs[i][2] for other in starts if other != start]
    margin = min([Fraction(1), *gaps])
    while len(ends) < len(jobs):
        running = [i for i in range(len(jobs)) if starts[i] <= now and i not in ends]
        for i in running:
            if i in seen:
                continue
            seen.add(i)
            working = [j for j in seen if j not in ends and j not in parked.values() and j != i]
            others = sorted((left[j], j) for j in working if not jobs[j][2])
            if jobs[i][2] and len(working) >= count and others:
                parked[i] = others[-1][1]
                margin = min([margin, *(others[-1][0] - each for each, _ in others[:-1])])
        running = [i for i in running if i not in parked.values()]
        urgent = sum(jobs[i][2] for i in running)
        others = len(running) - urgent
        rates = {
            i: min(Fraction(1), Fraction(count, urgent) if jobs[i][2] else Fraction(max(0, count - urgent), others))
            for i in running
        }
        changes = [start for start in starts if start > now] + [now + left[i] / rates[i] for i in running if rates[i]]
        until = min(changes)
        for i in running:
            left[i] -= rates[i] * (until - now)
            if not left[i]:
                ends[i] = until
                parked.pop(i, None)
        now = until
        if any(start == now and job[2] for start, job in zip(starts, jobs, strict=True)):
            before = [i for i in range(len(jobs)) if starts[i] < now]
            margin = min([margin, *(now - ends[i] if i in ends else left[i] for i in before)])
    return [float(ends[i]) for i in range(len(jobs))], margin


@pytest.mark.parametrize(
    ("count", "jobs", "ends"),
    [
        (2, [(0, 1, False)], [1]),
        (2, [(0, 1, False)] * 3, [1.5] * 3),
        (1, [(0, 1, False), (0.5, 1, False)], [1.5, 2]),
        (2, [(0, 2, False), (1, 2, False), (1, 1, False)], [2.5, 3.5, 2.5]),
        (2, [(0, 1, False), (0, 1, False), (0, 0.5, True)], [1, 1.5, 0.5]),
        (1, [(0, 1, False), (0.25, 0.5, True)], [1.5, 0.75]),
        (2, [(0, 1, False), (0, 2, False), (0.5, 1.5, True)], [1, 3.5, 2]),
        (2, [(0, 0.5, False), (0, 2, False), (0.25, 1.75, True), (1, 0.5, False)], [0.5, 3.75, 2, 1.5]),
        (2, [(0, 2, False), (0.25, 0.5, True)], [2, 0.75]),
        (1, [(0, 1, True), (0, 1, True), (0, 1, False)], [2, 2, 3]),
        (3, [(1, 0, False), (0, 2, True)], [1, 2]),
    ],
)
def test_jobs_end_when_they_should(count, jobs, ends):
    assert flow(count, jobs)[0] == ends
    assert play(count, jobs) == pytest.approx(ends)


@given(COUNTS, st.lists(st.tuples(st.floats(0, 5), SECONDS, st.booleans()), min_size=1, max_size=15))
def test_jobs_end_when_those_of_an_exact_fluid_do(count, jobs):
    ends, margin = flow(count, jobs)
    assume(margin > 1e-9)
    assert play(count, jobs) == pytest.approx(ends, abs=1e-12)


@given(COUNTS, st.lists(st.tuples(st.floats(0, 1), st.floats(1e-5, 1e-2), st.booleans()), min_size=1, max_size=15))
def test_short_jobs_end_late_in_a_long_run(count, jobs):
    origin = 1e7  # seconds: half a step of the clock, 1e-9, is a rest that no timeout can wait for
    ends, margin = flow(count, jobs)
    assume(margin > 1e-6)
    assert play(count, jobs, origin) == pytest.approx(ends, abs=1e-6)


@pytest.mark.parametrize("origin", [0.0, 100.0, 1e7])
def test_a_job_ends_before_an_urgent_one_of_the_same_instant_starts(origin):
    instant = 7.391041653637794e-05
    ends = play(1, [(0, instant, False), (instant, 1, True)], origin)
    assert ends == pytest.approx([instant, 1 + instant], abs=1e-8)


def test_a_long_job_beside_many_short_ones_does_not_drift():
    jobs = [(0, 5000.0, False)] + [(0.1 * i, 0.01, False) for i in range(20000)]
    # One core: each short one takes twice its work, and as much of the long one's time as it works itself.
    assert play(1, jobs)[0] == pytest.approx(5000 + 20000 * 0.01, abs=1e-8)


def test_no_work_is_done_at_once():
    assert Cores(simpy.Environment(), 1).work(0.0).triggered
