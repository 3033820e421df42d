"""Replicas keep what their algorithm's pattern says about their requests."""

import numpy as np
import pytest

from mpidl.algorithms import ALGORITHMS, BackupSync, Downpour, Rescaled, Softsync, Ssp
from mpidl.algorithms.algorithm import Exchange, Pattern
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push, pushes

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
    Ssp(): Pattern(pushes_gradients=True, even=True),
    Ssp(max_staleness=3): Pattern(even=True),
    BackupSync(): Pattern(pushes_gradients=True),
    BackupSync(max_staleness=1): Pattern(),
    BackupSync(grace=0.1): Pattern(),
    Rescaled(): Pattern(False, True, False, only_reads=True, even=True),
    Softsync(): Pattern(),
    Softsync(modulate=False): Pattern(pushes_gradients=True),
}
REST = [each() for each in ALGORITHMS.values() if each not in (Downpour, Rescaled, Ssp, BackupSync, Softsync)]


@pytest.mark.parametrize(("algorithm", "pattern"), PATTERNS.items())
def test_the_pattern_of_an_algorithm(algorithm, pattern):
    assert algorithm.pattern(2)._replace(repeatable=False) == pattern


@pytest.mark.parametrize("algorithm", [*PATTERNS, *(each for each in REST if each.exchange is Exchange.SERVERS)])
def test_another_replica_makes_the_same_pushes_of_what_is_repeatable(algorithm):
    """Given the batches of a push alone; gradients differ from batch to batch."""

    def made(batches):
        """Return what a replica pushes on batches, with the batches since the push before."""
        coming, since, found = iter(batches), [], []

        def gradient(request):
            since.append(request.batch)
            return request.batch ** np.arange(3.0)

        for vector in pushes(
            algorithm.replica(0, np.ones(3), 2, ReplicaState()), lambda: next(coming, None), fetch, gradient
        ):
            found.append((vector.copy(), list(since)))
            since.clear()
        return found

    def fetch(parameters):
        parameters[:] = 1.0

    first = made(range(1, 10))
    assert len(first) > 1
    again = [sum(vector for vector, _ in made(batches)) for _, batches in first]
    same = all(np.allclose(vector, other) for (vector, _), other in zip(first, again, strict=True))
    assert same == algorithm.pattern(2).repeatable


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
