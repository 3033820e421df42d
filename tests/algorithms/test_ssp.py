"""What a reader of stale synchronous parallel sees."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.algorithms import Ssp
from mpidl.algorithms.requests import Clock, Fetch, Gradient
from mpidl.data import Batch
from mpidl.data.dataset import ArraySplit
from mpidl.engines.virtual.times import Constant, Exponential, Times, Uniform
from mpidl.rules import Sgd

REPLICAS, CLOCKS = 4, 100


class Marks:
    """A model with an element for each clock of each replica."""

    def __init__(self):
        self.parameters = np.zeros(REPLICAS * CLOCKS)

    def loss_and_gradient(self, batch: Batch):
        return 0.0, np.zeros_like(self.parameters)


@dataclass(frozen=True)
class Watched(Ssp):
    """SSP whose gradients mark replica and clock, and which looks at what each fetch brings."""

    made = np.zeros(REPLICAS, int)
    ended = np.zeros(REPLICAS, bool)

    def replica(self, number, parameters, replicas, steps):
        inner, clock, answer = super().replica(number, parameters, replicas, steps), 0, None
        while True:
            try:
                request = inner.send(answer)
            except StopIteration:
                self.ended[number] = True
                return
            answer = yield request
            if isinstance(request, Fetch):
                self.look(-parameters.reshape(REPLICAS, CLOCKS), number, clock)
            elif isinstance(request, Gradient):
                answer = np.zeros(REPLICAS * CLOCKS)
                answer[number * CLOCKS + clock] = 1
                self.made[number] = clock + 1
            elif isinstance(request, Clock):
                clock += 1

    def look(self, seen, number, clock):
        assert seen[number, :clock].all()
        for other in range(REPLICAS):
            known = max(0, clock - self.bound)
            assert self.ended[other] or self.made[other] >= known
            assert seen[other, : min(known, self.made[other])].all()


@given(
    bound=st.integers(0, 4),
    slowness=st.lists(st.floats(0.1, 10), min_size=REPLICAS, max_size=REPLICAS),
    latency=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 9),
)
def test_a_reader_sees_its_own_updates_and_all_that_are_older_than_the_bound(lab, bound, slowness, latency, seed):
    data = np.zeros((200, 1), np.float32)
    algorithm = Watched(bound)
    algorithm.made[:], algorithm.ended[:] = 0, False
    times = Times(Exponential(1.0), Uniform(0, latency), slow=dict(enumerate(slowness)))
    problem = Marks(), ArraySplit(data, data)
    lab.engine(problem, algorithm, rule=Sgd(1.0), replicas=REPLICAS, epochs=3, times=times, seed=seed).run()


def test_a_bound_of_zero_is_bulk_synchronous(lab, least_squares):
    """Every step's gradients are all taken at the same parameters."""
    problem = least_squares()
    x, batches = problem[0].parameters.copy(), lab.batches(problem)
    for first in range(0, len(batches), 3):
        gradients = [lab.gradient(problem, x, indices) for indices in batches[first : first + 3]]
        x = x - 0.05 * sum(gradients)
    found = lab.trained(least_squares(), Ssp(0), rule=Sgd(0.05), replicas=3, times=Times(Constant(1.0)))
    assert found == pytest.approx(x, rel=1e-12)
