"""How long a relay waits for more pushes, in the time of a small simulation."""

import numpy as np
import pytest

from mpidl.relays.batching_window import BatchingWindow

TICK = 0.01


def simulate(steps, exchange, starts, jitter=0.0, until=200.0, away=()):
    """Return the number of exchanges and each worker's number of steps.

    Worker w pushes `steps[w]` after its last push was applied, and first at `starts[w]`. An exchange takes `exchange`.
    In `away` are (worker, begin, end) of a time in which a worker does something else.
    """
    random = np.random.default_rng(0)
    window, due = BatchingWindow(0.0, len(steps)), list(starts)
    here, sent, done, exchanges = [], [], [0] * len(steps), 0
    free = 0.0
    for tick in range(int(until / TICK)):
        now = tick * TICK
        for worker, begin, end in away:
            if begin <= due[worker] < end:
                due[worker] = end
        for worker, time in enumerate(due):
            if time <= now:
                window.begins_push(worker, now)
                window.ends_push(worker, now, first=not here)
                here.append(worker)
                done[worker] += 1
                due[worker] = np.inf
        if sent and now >= free:
            window.exchanged(sent, exchange, now)
            for worker in sent:
                due[worker] = now + steps[worker] * (1 + jitter * random.standard_normal())
            sent = []
        if here and not sent and not window.waits(here, now):
            sent, here, exchanges, free = here, [], exchanges + 1, now + exchange
    return exchanges, done


@pytest.mark.parametrize("exchange", [0.02, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("starts", [(0, 0, 0), (0, 0.33, 0.67), (0, 0.5, 0.5), (0, 0.1, 0.9)])
def test_workers_of_one_speed_share_every_exchange(exchange, starts):
    exchanges, done = simulate([1.0] * 3, exchange, starts, jitter=0.05)
    assert exchanges < 1.05 * np.mean(done)
    alone, (steps,) = simulate([1.0], exchange, (0,))
    assert np.mean(done) > 0.85 * steps
    assert exchanges < 1.05 * alone


@pytest.mark.parametrize("factor", [2.5, 10.0])
def test_a_slow_worker_holds_up_nobody(factor):
    _, (fast, _, slow) = simulate([1.0, 1.0, factor], 0.1, (0, 0, 0))
    _, (alone,) = simulate([1.0], 0.1, (0,))
    assert fast > 0.85 * alone
    assert slow > 0.85 * alone / factor


def test_a_worker_that_is_away_is_not_waited_for_and_comes_back_into_step():
    away, (first, second) = simulate([1.0, 1.0], 0.1, (0, 0), away=[(1, 50, 100)])
    _, (alone,) = simulate([1.0], 0.1, (0,))
    assert first > 0.97 * alone
    assert second > 0.72 * alone
    assert away < 1.03 * first


def test_workers_that_begin_a_little_later_are_waited_for_once():
    exchanges, done = simulate([1.0] * 3, 0.1, (1.0, 1.2, 1.3), until=10.0)
    assert exchanges == max(done)
    exchanges, (first, _) = simulate([1.0] * 2, 0.1, (1.0, np.inf), until=100.0)
    (_, (alone,)) = simulate([1.0], 0.1, (1.0,), until=100.0)
    assert exchanges == first >= alone - 1


def test_a_worker_that_has_left_is_not_waited_for():
    window = BatchingWindow(0.0, 2)
    for worker in (0, 1):
        window.begins_push(worker, 1.0)
        window.ends_push(worker, 1.0, first=worker == 0)
    window.exchanged([0, 1], 0.1, 1.1)
    window.begins_push(0, 2.1)
    window.ends_push(0, 2.1, first=True)
    assert window.waits([0], 2.2)
    window.leaves(1)
    assert not window.waits([0], 2.2)
