"""Processor sharing against schedules worked out by hand."""

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from mpidl.engines.cores import Cores


def play(number, jobs):
    """Run jobs, (start, seconds, urgent) each, and return when they end."""
    environment = simpy.Environment()
    cores = Cores(environment, number)
    ends = [0.0] * len(jobs)

    def job(i, start, seconds, urgent):
        yield environment.timeout(start)
        yield cores.work(seconds, urgent)
        ends[i] = environment.now

    for i, each in enumerate(jobs):
        environment.process(job(i, *each))
    environment.run()
    return ends


@pytest.mark.parametrize(
    ("number", "jobs", "ends"),
    [
        (2, [(0, 1, False)], [1]),
        (2, [(0, 1, False)] * 3, [1.5] * 3),
        (1, [(0, 1, False), (0.5, 1, False)], [1.5, 2]),
        (2, [(0, 1, False), (0, 1, False), (0, 0.5, True)], [1.25, 1.25, 0.5]),
        (1, [(0, 1, False), (0.25, 0.5, True)], [1.5, 0.75]),
        (1, [(0, 1, True), (0, 1, True), (0, 1, False)], [2, 2, 3]),
        (3, [(1, 0, False), (0, 2, True)], [1, 2]),
    ],
)
def test_jobs_end_when_they_should(number, jobs, ends):
    assert play(number, jobs) == pytest.approx(ends)


@given(
    number=st.integers(1, 4),
    jobs=st.lists(st.tuples(st.floats(0, 5), st.floats(0.001, 5), st.booleans()), min_size=1, max_size=20),
)
def test_no_core_is_idle_while_there_is_work_for_it(number, jobs):
    ends = play(number, jobs)
    for (start, seconds, _), end in zip(jobs, ends, strict=True):
        assert end >= start + seconds - 1e-9
    total = sum(seconds for _, seconds, _ in jobs)
    assert max(ends) >= total / number - 1e-9
    if all(start == jobs[0][0] for start, _, _ in jobs) and number == 1:
        assert max(ends) == pytest.approx(jobs[0][0] + total)
    # From the last start on, all cores work until fewer jobs than cores are left.
    last = max(start for start, _, _ in jobs)
    assert max(ends) <= last + total / number + max(seconds for _, seconds, _ in jobs) + 1e-9


@given(number=st.integers(1, 4), seconds=st.lists(st.floats(0.01, 5), min_size=1, max_size=20))
def test_of_jobs_that_start_together_the_shorter_ends_first(number, seconds):
    ends = play(number, [(0, each, False) for each in seconds])
    assert [end for _, end in sorted(zip(seconds, ends, strict=True))] == sorted(ends)
