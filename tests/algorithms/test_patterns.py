"""Replicas keep what their algorithm's pattern says about their requests."""

import numpy as np
import pytest

from mpidl.algorithms import ALGORITHMS, BackupSync, Downpour, Softsync, Ssp
from mpidl.algorithms.algorithm import Exchange, Pattern
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push

PATTERNS = {
    Downpour(): Pattern(False, True, True, only_reads=True),
    Downpour(n_push=2): Pattern(False, True, False, only_reads=True),
    Downpour(wire_fetch="bf16"): Pattern(False, True, True),
    Downpour(overlap=True): Pattern(True, True, False),
    Downpour(n_push=3, overlap=True): Pattern(True, True, False),
    Downpour(3, overlap=True): Pattern(True, False, False),
    Downpour(3): Pattern(),
    Downpour(3, rate=0.1): Pattern(),
    Downpour(4, schedule="literal"): Pattern(),
    Downpour(max_staleness=3): Pattern(only_reads=True),
    Ssp(): Pattern(pushes_gradients=True),
    Ssp(max_staleness=3): Pattern(),
    BackupSync(): Pattern(pushes_gradients=True),
    BackupSync(max_staleness=1): Pattern(),
    BackupSync(grace=0.1): Pattern(),
    Softsync(): Pattern(),
    Softsync(modulate=False): Pattern(pushes_gradients=True),
}
REST = [each() for each in ALGORITHMS.values() if each not in (Downpour, Ssp, BackupSync, Softsync)]


@pytest.mark.parametrize(("algorithm", "pattern"), PATTERNS.items())
def test_the_pattern_of_an_algorithm(algorithm, pattern):
    assert algorithm.pattern(2) == pattern


@pytest.mark.parametrize("algorithm", [*PATTERNS, *(each for each in REST if each.exchange is Exchange.SERVERS)])
def test_a_replica_keeps_to_its_pattern(algorithm):
    pattern, parameters, gradient = algorithm.pattern(2), np.zeros(5), np.zeros(5)
    replica, answer, batches = algorithm.replica(0, parameters, 2, ReplicaState()), None, iter(range(9))
    pushed, untouched, last = None, None, None
    try:
        while True:
            request = replica.send(answer)
            assert untouched is None or np.array_equal(parameters, untouched)
            assert pushed is None or np.array_equal(*pushed)
            if isinstance(last, Gradient) and pattern.pushes_gradients:
                assert isinstance(request, Push)
                assert request.vector is gradient
            if isinstance(request, Fetch):
                assert request.parameters is parameters or not pattern.fetches_next
                pushed = untouched = None
                request.parameters[:] += 1
            if pattern.fetches_next:
                assert untouched is None or not isinstance(request, Gradient | Push)
            answer = next(batches, None) if isinstance(request, NextBatch) else None
            if isinstance(request, Gradient):
                gradient += 1
                answer = gradient
                pushed = (gradient, gradient.copy()) if pattern.pushes_gradients else None
            if isinstance(request, Push) and pattern.fetches_next:
                untouched = parameters.copy()
                pushed = None if pattern.prefetches else (request.vector, request.vector.copy())
            last = request
    except StopIteration:
        pass
