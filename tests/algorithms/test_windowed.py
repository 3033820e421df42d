"""Windows of local steps, request by request: what is pushed, also for a last one that is shorter."""

from collections import deque

import numpy as np
import pytest

from mpidl.algorithms import Adag, Agn, Averaging, Dynsgd, Fedprox
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push, Reduce, Speed
from mpidl.parameters import Range

#: The gradient of a plain parameter and of a statistic.
GRADIENT = np.array([1.0, 0.25])


def pushes(algorithm, batches):
    """Return what a replica pushes that takes this number of batches."""
    state, left, pushed = ReplicaState(statistics=[Range(1, 2)]), deque(range(batches)), []
    replica, answer = algorithm.replica(0, np.zeros(2), 1, state), None
    while True:
        try:
            request = replica.send(answer)
        except StopIteration:
            return pushed
        match request:
            case NextBatch():
                answer = left.popleft() if left else None
            case Gradient():
                answer = GRADIENT
            case Push(values):
                pushed.append(values.reshape(-1, 2)[0].copy())
            case _:
                assert isinstance(request, Fetch)


@pytest.mark.parametrize(
    ("algorithm", "factor"),
    [
        (Dynsgd(window=4, rate=0.5), 1.0),
        (Adag(window=4, rate=0.5, damping="norm"), 1.0),
        (Adag(window=4, rate=0.5), 1 / 4),
        (Agn(window=4, rate=0.5), 1 / 4),
    ],
)
def test_a_push_moves_statistics_by_no_more_than_the_mean_of_its_steps(algorithm, factor):
    """Hermans' sums of steps, or divided by lambda; statistics, which are means already, are never summed."""
    found = pushes(algorithm, 10)
    assert [-0.5 * GRADIENT[0] * steps * factor for steps in (4, 4, 2)] == [values[0] for values in found]
    shares = (1, 1, 1) if factor == 1 else (4 * factor, 4 * factor, 2 * factor)
    assert [-GRADIENT[1] * share for share in shares] == [values[1] for values in found]


@pytest.mark.parametrize("algorithm", [Averaging(tau=4, dynamic=True), Fedprox(window=4, dynamic=True)])
@pytest.mark.parametrize(("speed", "steps"), [(1.0, 4), (0.6, 2), (0.5, 2), (0.01, 1)])
def test_a_slow_replica_makes_fewer_steps_but_at_least_one(algorithm, speed, steps):
    """Dynamic local updates, B. Liu et al. 2024: the steps are floor(speed H), and they weigh as many."""
    replica, answer, made = algorithm.replica(0, np.zeros(2), 1, ReplicaState()), None, 0
    while not isinstance(request := replica.send(answer), Reduce):
        assert isinstance(request, Speed | NextBatch | Gradient)
        answer = speed if isinstance(request, Speed) else GRADIENT
        made += isinstance(request, Gradient)
    assert (made, request.weight) == (steps, steps)


@pytest.mark.parametrize("algorithm", [Adag, Agn])
@pytest.mark.parametrize(
    ("window", "replicas", "expected"),
    [
        (None, 1, (0.5, 2)),
        (None, 4, (0.3, 3)),
        (None, 16, (0.2, 12)),
        (None, 64, (0.1, 48)),
        (8, 4, (0.4, 8)),
        (1, 4, (0.1, 1)),
    ],
)
def test_rates_and_windows_without_a_choice_follow_the_replicas(algorithm, window, replicas, expected):
    assert algorithm(window=window).chosen(replicas) == pytest.approx(expected)
