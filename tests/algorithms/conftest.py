"""What the tests of algorithms share: a virtual engine on a small problem, and a serial loop to compare with."""

from functools import partial

import numpy as np
import pytest

from mpidl.algorithms.coordination import matrices
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.data import Portions
from mpidl.data.dataset import ArraySplit, Split
from mpidl.data.schedule import Schedule
from mpidl.engines.virtual import Hooks, Training, VirtualEngine, VirtualTime
from mpidl.engines.virtual.times import Exponential, Times
from mpidl.nn import adapt
from mpidl.parameters import shards
from mpidl.rules import Sgd
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard

BATCH, RATE = 8, 0.05


def vectors(algorithm, size, parameters):
    """Return what shards of this size keep beside the parameters, of which the model has as many, without a rule."""
    found = {name: np.zeros((size, parameters)) for name in matrices(algorithm)}
    return {name: np.zeros(size) for name in algorithm.vectors()} | found


class Lab:
    """Makes and runs virtual engines; batches of 8 samples, a batch a portion."""

    batch, start = BATCH, 1.0
    random_times = Times(Exponential(1.0), Exponential(0.1), Exponential(0.05))

    def engine(
        self,
        problem, algorithm, rule=None, servers=2, replicas=1, epochs=2, times=None, seed=0, chunk=None, of_shards=None,
        of_steps=None, **hooks,
    ):  # fmt: skip
        model, split = problem
        parts = [
            Shard(
                part,
                model.parameters[part.start : part.stop].copy(),
                ScheduledRule(None if algorithm.default_rule is None else rule or Sgd(RATE), **(of_shards or {})),
                algorithm.shard_policy(replicas),
                chunk or part.size,
                **({} if algorithm.default_rule else {"state": vectors(algorithm, part.size, model.parameters.size)}),
            )
            for part in shards(model.parameters.size, servers)
        ]
        training = Training(
            algorithm, adapt(model), split, self.schedule(problem, epochs), partial(ReplicaState, **(of_steps or {})),
            layout=getattr(model, "layout", None),
        )  # fmt: skip
        return VirtualEngine(
            training, parts, replicas, time=VirtualTime(times, seed, start=self.start), hooks=Hooks(**hooks)
        )

    def schedule(self, problem, epochs=2):
        return Schedule(Portions(problem[1].samples, BATCH, BATCH, seed=7), epochs=epochs)

    def trained(self, problem, algorithm, **options):
        engine = self.engine(problem, algorithm, **options)
        engine.run()
        return engine.parameters()

    def batches(self, problem, epochs=2):
        """Return the samples of all batches, in the order in which they are handed out."""
        portions = Portions(problem[1].samples, BATCH, BATCH, seed=7)
        return [portions.batches(number)[0] for number in range(epochs * portions.per_epoch)]

    def gradient(self, problem, x, indices):
        model, split = problem
        model.parameters[:] = x
        return model.loss_and_gradient(split.gather(indices))[1].copy()

    @staticmethod
    def sgd(x, gradient):
        """Update for `serial`, at the rate that rules have by default here."""
        return x - RATE * gradient(x)

    def serial(self, problem, update, epochs=2):
        """Train in a plain loop; `update(x, gradient)` takes a function and returns the new x."""
        x = problem[0].parameters.copy()
        for indices in self.batches(problem, epochs):
            x = update(x, lambda at, indices=indices: self.gradient(problem, at, indices))
        return x


@pytest.fixture
def lab():
    return Lab()


@pytest.fixture
def numbered():
    """Samples that are their own number."""
    numbers = np.arange(331, dtype=np.float32)[:, None]
    return ArraySplit(numbers, np.zeros(331, int))


@pytest.fixture
def weighed():
    """Return a function of a problem: the same with batches of other weights than their samples', and these weights."""

    def make(problem):
        model, split = problem

        class Weighed(Split):
            samples = split.samples

            def gather(self, indices, epoch=0):
                return split.gather(indices)._replace(weight=weigh(indices))

        def weigh(indices):
            return 1.0 + indices.sum()

        return (model, Weighed()), weigh

    return make
