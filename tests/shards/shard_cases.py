"""A shard of every policy, and pushes to it that interleave."""

import math
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from mpidl.parameters import Range
from mpidl.rules import Adagrad, Adam, Muon, Nesterov, Sgd
from mpidl.rules.segments import Matrix, Segment
from mpidl.shards.on_device import ShardOnDevice
from mpidl.shards.policies import (
    AccumulateGradients,
    AddChange,
    ApplyAtOnce,
    Assign,
    DampedChange,
    DecreasingRate,
    DelayCompensated,
    DelayedNesterov,
    FirstOfStep,
    GradientTable,
    RescaledRate,
    drop_above,
    inverse,
    inverse_plus_one,
)  # fmt: skip
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard

WORKERS = 3
CASES = {
    "apply": (Adam(0.1), lambda: ApplyAtOnce(inverse)),
    "add": (Sgd(), lambda: AddChange(inverse_plus_one)),
    "assign": (Sgd(), Assign),
    "delay_compensated": (Adagrad(0.1), lambda: DelayCompensated(0.3)),
    "delay_compensated_adaptively": (Adagrad(0.1), lambda: DelayCompensated(2.0, 0.9)),
    "adag": (Sgd(), lambda: DampedChange(0.2)),
    "adag_by_norm": (Sgd(), lambda: DampedChange(0.2, norm=True)),
    "gather": (Adam(0.1), lambda: AccumulateGradients(3, inverse)),
    "delayed_nesterov": (Nesterov(0.7, 0.9), lambda: DelayedNesterov(3)),
    "first_of_step": (Adagrad(0.1), lambda: FirstOfStep(2, WORKERS)),
    "first_with_grace": (Adagrad(0.1), lambda: FirstOfStep(2, WORKERS, 1.5)),
    "gradient_table": (Adam(0.1), lambda: GradientTable(WORKERS)),
    "rescaled": (Adagrad(0.1), lambda: RescaledRate(WORKERS)),
    "decreasing": (Sgd(0.1), lambda: DecreasingRate(0.75)),
    "matrices": (Muon(0.1), ApplyAtOnce),
    "gather_matrices": (Muon(0.1), lambda: AccumulateGradients(3, inverse)),
    "drop": (Adagrad(0.1), lambda: drop_above(1, ApplyAtOnce())),
    "drop_gather": (Adagrad(0.1), lambda: drop_above(1, AccumulateGradients(2))),
    "drop_first_with_grace": (Adagrad(0.1), lambda: drop_above(1, FirstOfStep(2, WORKERS, 1.5))),
    "drop_compensated": (Adagrad(0.1), lambda: drop_above(1, DelayCompensated(0.3))),
}


def is_open(shard, worker):
    """Return whether a push of a worker has arrived in part."""
    return worker in shard.state()["open"][:, 0]


def make(case, size, chunk, dtype, xp=None, seed=0):
    """Return a shard; the seed gives its first values."""
    rule, policy = CASES[case]
    parameters = np.random.default_rng(seed).normal(size=size).astype(dtype)
    scheduled = ScheduledRule(rule, lambda batch: 1 / (2 + batch), [Range(5, 7), Range(12, 30)])
    whole = Range(3, 3 + size)
    if isinstance(rule, Muon):
        rows = 2 if size % 2 else 1
        matrix = Segment(Range(4, 3 + size), matrix=Matrix(rows, (size - 1) // rows))
        other = Segment(Range(3, 4), rule.other_factor, rule=rule.other)
        scheduled = ScheduledRule(rule, scheduled.rate_at, segments=[other, *[matrix] * (size > 1)])
    if xp is None:
        return Shard(whole, parameters, scheduled, policy(), chunk, clock=4)
    state = {name: np.zeros_like(parameters) for name in rule.states}
    return ShardOnDevice(whole, parameters, scheduled, policy(), chunk, xp=xp, state=state, clock=4)


def values_of(shard, worker, number, chunk):
    """Return what one chunk of a worker's push has, random but always the same."""
    shape = (1 + shard.policy.compares, shard.pieces[chunk].size)
    values = np.random.default_rng((worker, number, chunk)).normal(size=shape).astype(shard.parameters.dtype)
    return values if shard.policy.compares else values[0]


@dataclass
class Pushes:
    """What workers send: each its next chunk whenever it is its turn, until it leaves. Time passes in leaps."""

    turns: int = 0
    next: dict = field(default_factory=lambda: defaultdict(int))
    fetched: dict = field(default_factory=dict)
    left: set = field(default_factory=set)

    def act(self, shard, worker, leaves, lag):
        self.turns += 1
        if self.turns % 5 == 0:
            shard.pass_time(math.inf)
        if worker in self.left:
            return
        number, arrived = divmod(self.next[worker], shard.chunks)
        if not arrived:
            if leaves:
                self.left.add(worker)
                shard.remove_worker(worker)
                return
            self.fetched[worker] = max(4, shard.clock - lag)
        chunk = shard.chunks - 1 - arrived
        values = values_of(shard, worker, number, chunk)
        shard.receive_chunk(worker, chunk, self.fetched[worker], values, (number, number + worker))
        self.next[worker] += 1


def finish(shard, pushes, actions):
    for action in actions:
        pushes.act(shard, *action)
    shard.apply_rest()


def listed(shard):
    """Return a copy of a shard's state in the host's memory."""
    state = shard.state()
    return {name: values.get() if hasattr(values, "get") else np.array(values) for name, values in state.items()}


def assert_same(state, expected):
    assert state.keys() == expected.keys()
    for name, values in expected.items():
        assert (values.dtype, values.shape) == (state[name].dtype, state[name].shape), name
        assert values.tobytes() == state[name].tobytes(), name
