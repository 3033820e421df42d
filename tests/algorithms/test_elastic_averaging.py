"""Elastic averaging against what its papers prove."""

import numpy as np
import pytest

from mpidl.algorithms import Aeasgd, Eamsgd, Easgd
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push


class Drive:
    """Replicas with an objective each, taking turns against a center to which pushes are added."""

    def __init__(self, algorithm, gradients, center):
        self.center, self._gradients = np.array([center]), gradients
        self.x = [np.zeros(1) for _ in gradients]
        self._replicas = [algorithm.replica(i, x, len(gradients), ReplicaState()) for i, x in enumerate(self.x)]
        self._requests = [next(replica) for replica in self._replicas]

    def step(self):
        """Let each replica do one step, from before its batch to before the next."""
        for i in range(len(self._replicas)):
            while not isinstance(self._requests[i], NextBatch):
                self._answer(i)
            self._answer(i)
            while not isinstance(self._requests[i], NextBatch):
                self._answer(i)

    def _answer(self, i):
        request, answer = self._requests[i], ()
        if isinstance(request, Fetch):
            request.parameters[:] = self.center
        elif isinstance(request, Push):
            self.center += request.vector
        elif isinstance(request, Gradient):
            answer = self._gradients[i](request.parameters)
        self._requests[i] = self._replicas[i].send(answer)


@pytest.mark.parametrize("tau", [1, 4, 16])
@pytest.mark.parametrize("cls", [Easgd, Eamsgd])
def test_the_center_of_elastic_averaging_settles_at_the_mean_of_the_replicas_minima(cls, tau):
    minima = [-3.0, 1.0, 8.0]
    drive = Drive(cls(rate=0.01, tau=tau, alpha=0.01), [lambda x, b=b: x - b for b in minima], 0.0)
    for _ in range(8000):
        drive.step()
    # Taking turns, each replica sees the center a little moved: an error of the order of alpha.
    assert drive.center[0] == pytest.approx(np.mean(minima), abs=0.05)


def test_replicas_settle_where_gradient_and_elastic_force_balance():
    """At tau = 1, x_i - c = a (b_i - mean b) / (a + rho)."""
    minima, a, rho, rate = np.array([-3.0, 1.0, 8.0]), 2.0, 0.5, 1e-3
    drive = Drive(Easgd(rate=rate, tau=1, alpha=rate * rho), [lambda x, b=b: a * (x - b) for b in minima], 0.0)
    for _ in range(20000):
        drive.step()
    expected = a * (minima - minima.mean()) / (a + rho)
    assert np.ravel(drive.x) - drive.center == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("replicas", [1, 2, 5])
@pytest.mark.parametrize("rate", [0.1, 0.5, 1.0, 1.9])
def test_easgd_in_turns_is_stable_up_to_the_bound_for_alpha(rate, replicas):
    """On a quadratic with h = 1, for any number of replicas: 0 <= alpha <= (4 - 2 eta) / (4 - eta)."""

    def distance(share):
        alpha = share * (4 - 2 * rate) / (4 - rate)
        algorithm = Easgd(rate=rate, tau=1)
        object.__setattr__(algorithm, "alpha", alpha)  # beyond 1 too, which the constructor refuses
        drive = Drive(algorithm, [lambda x: x - 1.0] * replicas, 0.0)
        for _ in range(3000):
            drive.step()
        return abs(drive.center[0] - 1.0)

    with np.errstate(over="ignore", invalid="ignore"):
        assert distance(0.97) < 1e-3
        assert not distance(1.2) < 1e3


def test_without_gradients_the_sum_of_replicas_and_center_is_kept():
    pulls = [3.0, -8.0]
    drive = Drive(Easgd(rate=1.0, tau=2, alpha=0.2), [lambda x, i=i: np.full(1, -pulls[i]) for i in range(2)], 5.0)
    for _ in range(7):
        drive.step()
    total = drive.center[0] + sum(x[0] for x in drive.x)
    assert total == pytest.approx(3 * 5.0 + 7 * sum(pulls), rel=1e-14)
    pulls[:] = 0.0, 0.0
    before = drive.center[0]
    for _ in range(10):
        drive.step()
    assert drive.center[0] != before
    assert drive.center[0] + sum(x[0] for x in drive.x) == pytest.approx(total, rel=1e-14)


def test_easgd_without_force_is_serial_sgd_of_its_replica(lab, least_squares):
    problem = least_squares()
    center = lab.trained(problem, Easgd(rate=0.05, alpha=0.0), servers=1)
    assert np.array_equal(problem[0].parameters, lab.serial(least_squares(), lab.sgd))
    assert np.array_equal(center, least_squares()[0].parameters)


def test_eamsgd_without_force_is_serial_nesterov(lab, least_squares):
    velocity = np.zeros(13)

    def nesterov(x, gradient):
        nonlocal velocity
        ahead.append(x + 0.9 * velocity)
        velocity = 0.9 * velocity - 0.02 * gradient(ahead[-1])
        return x + velocity

    ahead = []
    lab.serial(least_squares(), nesterov)
    problem = least_squares()
    lab.trained(problem, Eamsgd(rate=0.02, alpha=0.0))
    # What the replica holds at the end is where it took its last gradient.
    assert problem[0].parameters == pytest.approx(ahead[-1], rel=1e-13)


def test_eamsgd_without_momentum_is_easgd(lab, least_squares):
    options = {"replicas": 3, "times": lab.random_times}
    momentumless = lab.trained(least_squares(), Eamsgd(rate=0.05, alpha=0.3, delta=0.0, tau=2), **options)
    assert momentumless == pytest.approx(
        lab.trained(least_squares(), Easgd(rate=0.05, alpha=0.3, tau=2), **options), rel=1e-12
    )


def test_aeasgd_without_force_never_moves_the_center(lab, least_squares):
    assert np.array_equal(lab.trained(least_squares(), Aeasgd(rho=0.0)), least_squares()[0].parameters)
