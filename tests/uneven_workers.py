"""Workers with different speeds and data, f_i(x) = (x - c_i)^2 / 2 with a center c_i of each one's own."""

import numpy as np

from mpidl.parameters import Range
from mpidl.rules import Sgd
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard

SIZE, CHUNK, RATE = 7, 3, 0.1
SPEEDS = np.array([1.0, 3.0, 8.0, 2.0])
CENTERS = np.random.default_rng(5).normal(size=(len(SPEEDS), SIZE))


class Workers:
    """Workers that compute gradients at what they fetched last and push them to a shard, in random order."""

    def __init__(self, algorithm, rule=None, seed=0):
        workers = len(SPEEDS)
        scheduled = ScheduledRule(rule or Sgd(RATE))
        self.shard = Shard(Range(0, SIZE), np.zeros(SIZE), scheduled, algorithm.shard_policy(workers), CHUNK)
        self.random, self.clocks = np.random.default_rng(seed), [0] * workers
        self.points = [np.zeros(SIZE)] * workers

    def push(self):
        """Let one of them push and fetch; return its number and gradient, and the clock at which that was computed."""
        worker = int(self.random.choice(len(SPEEDS), p=SPEEDS / SPEEDS.sum()))
        gradient, clock = self.points[worker] - CENTERS[worker], self.clocks[worker]
        self.shard.receive_push(worker, clock, gradient)
        self.points[worker], self.clocks[worker] = self.shard.parameters.copy(), self.shard.clock
        return worker, gradient, clock
