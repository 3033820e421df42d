"""Algorithms keep what they promise: a gradient is pushed as it is, and doesn't change before a fetch that follows."""

import numpy as np
import pytest

from mpidl.algorithms import ALGORITHMS, BackupSync, Downpour, Softsync, Ssp
from mpidl.algorithms.algorithm import Exchange
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push

EARLY = [Downpour(), Ssp(), BackupSync(), Softsync(modulate=False)]
LATE = [
    Downpour(3), Downpour(4, schedule="literal"), Downpour(3, rate=0.1), Downpour(n_push=2), Downpour(overlap=True),
    Downpour(max_staleness=3), Ssp(max_staleness=3), Softsync(),
    BackupSync(max_staleness=1),
]  # fmt: skip
REST = [each() for each in ALGORITHMS.values() if each not in (Downpour, Ssp, BackupSync, Softsync)]


@pytest.mark.parametrize("algorithm", [*EARLY, *LATE, *(each for each in REST if each.exchange is Exchange.SERVERS)])
def test_the_push_that_was_said_to_follow_does(algorithm):
    parameters, answer, early = np.zeros(5), None, 0
    replica, batches = algorithm.replica(0, parameters, 2, ReplicaState()), iter(range(9))
    try:
        while True:
            request = replica.send(answer)
            answer = next(batches, None) if isinstance(request, NextBatch) else None
            if isinstance(request, Gradient):
                answer = gradient = np.arange(5.0) + request.batch
                if request.early:
                    early += 1
                    kept = gradient.copy()
                    request = replica.send(gradient)
                    assert isinstance(request, Push)
                    assert request.vector is gradient
                    assert np.array_equal(gradient, kept)
                    answer = None
    except StopIteration:
        pass
    assert early == (9 if algorithm in EARLY else 0)


@pytest.mark.parametrize("algorithm", [*EARLY, *LATE, *(each for each in REST if each.exchange is Exchange.SERVERS)])
def test_what_leaves_from_where_it_is_stays_until_a_fetch_has_followed(algorithm):
    replica, answer, batches = algorithm.replica(0, np.zeros(5), 2, ReplicaState()), None, iter(range(9))
    gradient, leaving, left, following = np.zeros(5), None, 0, None
    try:
        while True:
            request = replica.send(answer)
            assert leaving is None or np.array_equal(*leaving)
            if isinstance(request, Fetch) and following is not None:
                assert (request.parameters is following.fetched_next, request.ahead) == (True, following.ahead)
                following = None
            if isinstance(request, Gradient | Push):
                assert following is None
                following = request if isinstance(request, Push) and request.fetched_next is not None else None
            answer = next(batches, None) if isinstance(request, NextBatch) else None
            if isinstance(request, Gradient):
                assert leaving is None
                gradient += 1
                answer = gradient
                leaving = (gradient, gradient.copy()) if request.early else None
            elif isinstance(request, Push) and request.fetched_next is not None:
                leaving = None if request.ahead else (request.vector, request.vector.copy())
            elif isinstance(request, Fetch):
                left += leaving is not None
                leaving = None
    except StopIteration:
        pass
    assert algorithm not in EARLY or left == 8
