"""A replica that is resumed anywhere goes on as if nothing had been: the parameters are the same to the last bit."""

from dataclasses import replace
from functools import partial
from itertools import cycle, product

import numpy as np
import pytest

from mpidl.algorithms import (
    ALGORITHMS,
    Adag,
    Aeasgd,
    Agn,
    Averaging,
    BackupSync,
    Dcasgd,
    Diloco,
    Downpour,
    Dynsgd,
    Eamsgd,
    Easgd,
    Exchange,
    Fedprox,
    Rescaled,
    Ringleader,
    Softsync,
    Ssp,
    Sync,
)
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Clock, Fetch, Gradient, NextBatch, Push, drive
from mpidl.data import Portions
from mpidl.data.schedule import Schedule
from mpidl.engines.virtual import Hooks, Training, VirtualEngine
from mpidl.errors import UsageError
from mpidl.nn import adapt
from mpidl.parameters import Range, shards
from mpidl.rules import RULES, Adam
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard
from mpidl.storage.position import Position, cut_position
from rows import in_turn

BATCH, PORTION, EPOCHS = 8, 24, 2
BATCHES = 2 * 13  # 101 samples: the last batch of an epoch has 5, its last portion one batch
START = Position(0, 0, 0.0, 0, [])
WIRES = ["bf16", "int8", "topk:0.3", "onebit"]

CASES = {
    "adag": Adag(window=4),
    "adag-1": Adag(window=1),
    "aeasgd": Aeasgd(window=3),
    "agn": Agn(window=5),
    "averaging": Averaging(tau=4),
    "averaging-adam": Averaging(tau=5, inner="adam", rate=0.01),
    "averaging-1": Averaging(tau=1),
    "backup_sync": BackupSync(),
    "backup_sync-grace": BackupSync(grace=0.5),
    "dcasgd": Dcasgd(),
    "diloco": Diloco(window=4, rate=0.01),
    "diloco-streaming": Diloco(window=4, rate=0.01, fragments=2, overlap=3, mixing=0.5),
    "diloco-asynchronous": Diloco(window=3, rate=0.01, asynchronous=True),
    "diloco-quorum": Diloco(window=3, rate=0.01, quorum=1),
    "diloco-quorum-grace": Diloco(window=4, rate=0.01, quorum=1, grace=0.5),
    "downpour": Downpour(),
    "downpour-push": Downpour(n_push=4),
    "downpour-fetch": Downpour(n_fetch=3, rate=0.02),
    "downpour-both": Downpour(n_fetch=5, n_push=3, rate=0.02),
    "downpour-literal": Downpour(n_fetch=4, n_push=3, rate=0.02, schedule="literal"),
    "downpour-stale": Downpour(n_push=2, n_fetch=4, max_staleness=0),
    "dynsgd": Dynsgd(window=4),
    "eamsgd": Eamsgd(tau=3),
    "eamsgd-1": Eamsgd(tau=1),
    "easgd": Easgd(tau=3),
    "easgd-synchronous": Easgd(tau=3, asynchronous=False),
    "fedprox": Fedprox(window=5),
    "fedprox-nesterov": Fedprox(window=4, inner="nesterov", mu=0.5),
    "rescaled": Rescaled(),
    "rescaled-both": Rescaled(n_fetch=5, n_push=3, rate=0.02),
    "ringleader": Ringleader(),
    "softsync": Softsync(),
    "ssp": Ssp(bound=1),
    "sync": Sync(),
}
THROUGH_SERVERS = [name for name in CASES if CASES[name].exchange is Exchange.SERVERS]
#: Batches between stops, and whether all tickets so far are taken.
AGAIN = [(1, True), (4, False), (0, True), (1, False), (4, True), (0, False)]


def rate_at(portion):
    return 1 / (1 + 0.1 * portion)


class Stop:
    """Where a run was stopped: all that a checkpoint holds of it."""

    def __init__(self, engine, schedule, start, in_turn):
        taken = None if in_turn else engine.supply.tickets
        position = cut_position(start, engine.positions(), schedule, taken=taken, seconds=0.0)
        self.position = Position.of(position.attributes()).with_replicas(schedule, in_turn)
        self.shards = [{name: np.array(values) for name, values in shard.state().items()} for shard in engine.shards]
        self.vectors = engine.replicas[0].vectors()


class Run:
    """One replica and two shards, from the beginning or from a stop, to the end or to the next stop."""

    def __init__(self, problem, algorithm, stop=None, after=None, in_turn=True):
        model, split = problem
        start = stop.position if stop is not None else START
        schedule = Schedule(Portions(split.samples, BATCH, PORTION, seed=7), EPOCHS, None, *start[3:5])
        statistics = [Range(2, 4)]
        # An outer rule has one rate.
        rates = {} if algorithm.outer else {"rate_at": rate_at}
        rule = ScheduledRule(algorithm.default_rule and self.rule(algorithm), statistics=statistics, **rates)
        if stop is not None:
            # A process that starts anew has other values in its memory.
            model.parameters += 1
        parts = [
            Shard(part, model.parameters[slice(*part)].copy(), rule, algorithm.shard_policy(1), 3)
            for part in shards(model.parameters.size, 2)
        ]
        resumed, taken = None, 0
        if stop is not None:
            for shard, state in zip(parts, stop.shards, strict=True):
                shard.load(state)
                shard.policy.expect_all()
            resumed = {0: (start.replicas[0], stop.vectors)}
            taken = start.replicas[0].tickets if in_turn else 0
        training = Training(algorithm, adapt(model), split, schedule, partial(ReplicaState, rate_at, statistics))
        self._schedule, self._start, self._after, self._in_turn = schedule, start, after, in_turn
        self.stop, self._batches = None, 0
        hooks = Hooks(on_batch=self._watch)
        self._engine = VirtualEngine(training, parts, 1, hooks=hooks, resumed=resumed, taken=taken)
        self._engine.run()
        self.parameters = self._engine.parameters()

    @staticmethod
    def rule(algorithm):
        return algorithm.default_rule if isinstance(algorithm, Diloco) else Adam(0.05)

    def _watch(self):
        if self._batches == self._after:
            self.stop = Stop(self._engine, self._schedule, self._start, self._in_turn)
            self._engine.stop()
        self._batches += 1


def check(make, algorithm, gaps, in_turn=True, expected=None):
    """Stop a run after a few batches again and again, and compare it with one that was not stopped."""
    stop = None
    if expected is None:
        expected = Run(make(), algorithm).parameters
    for gap in gaps:
        stop = Run(make(), algorithm, stop, gap, in_turn).stop
    resumed = Run(make(), algorithm, stop, in_turn=in_turn)
    assert np.isfinite(expected).all()
    assert resumed.parameters.tobytes() == expected.tobytes()
    return stop


@pytest.mark.parametrize(("name", "dtype"), list(zip(CASES, cycle(["float32", "float64"]), strict=False)))
def test_a_run_that_is_resumed_after_any_batch_is_the_uninterrupted_one(least_squares, name, dtype):
    expected = Run(least_squares(dtype=dtype), CASES[name]).parameters
    # Seven is prime to all windows, so that these are their beginning, middle and end.
    for batches in (*range(list(CASES).index(name) % 7, BATCHES, 7), BATCHES // 2, BATCHES):
        stop = check(lambda: least_squares(dtype=dtype), CASES[name], [batches], expected=expected)
        assert stop.position.step == batches
        assert stop.position.samples == sum(5 if k % 13 == 12 else 8 for k in range(batches))


@pytest.mark.parametrize(("name", "gap", "taken_in_turn"), in_turn(CASES, AGAIN, each=3))
def test_a_run_may_be_resumed_again_and_again(least_squares, name, gap, taken_in_turn):
    check(least_squares, CASES[name], [gap] * (BATCHES // gap if gap else 3), taken_in_turn)


@pytest.mark.parametrize(
    ("name", "wire", "way"), in_turn(THROUGH_SERVERS, list(product(WIRES, ["wire", "wire_fetch"])), each=2)
)
def test_what_a_wire_format_leaves_out_is_kept_too(least_squares, name, wire, way):
    """Of pushes in the residual, of fetches in the copy that follows the shards."""
    algorithm = replace(CASES[name], **{way: wire})

    def make():
        return least_squares(dtype="float32")

    check(make, algorithm, [1] * BATCHES)


@pytest.mark.parametrize("name", RULES)
def test_local_steps_of_any_rule_go_on(least_squares, name):
    check(least_squares, Averaging(tau=4, inner=name, rate=0.005), [6, 4, 5])


def test_every_algorithm_that_can_be_deterministic_is_among_the_cases():
    def takes_deterministic(algorithm):
        try:
            algorithm.check(True, algorithm.default_rule)
        except UsageError:
            return False
        return True

    assert {type(case) for case in CASES.values()} == {
        algorithm for algorithm in ALGORITHMS.values() if takes_deterministic(algorithm())
    }


#: What the replica of an algorithm keeps; without any of it, a run goes on differently.
KEPT = {
    "aeasgd": ["parameters"],
    "agn": ["parameters", "start"],
    "averaging": ["parameters", "rule/velocity"],
    "diloco": ["parameters", "rule/first_moment", "rule/second_moment", "start"],
    "diloco-quorum": ["parameters", "rule/first_moment", "rule/second_moment", "start"],
    "diloco-streaming": ["parameters", "rule/first_moment", "rule/second_moment", "start"],
    "downpour-both": ["accrued", "parameters"],
    "eamsgd": ["rule/velocity", "x"],
    "easgd": ["parameters"],
    "fedprox": ["parameters", "rule/velocity", "start"],
}


@pytest.mark.parametrize(("name", "vector"), [(name, vector) for name, kept in KEPT.items() for vector in kept])
def test_each_vector_that_is_kept_is_needed(least_squares, name, vector):
    stop = Run(least_squares(), CASES[name], after=7).stop
    assert sorted(stop.vectors) == KEPT[name]
    expected = Run(least_squares(), CASES[name], stop).parameters
    stop.vectors[vector] = stop.vectors[vector] + 1
    assert not np.array_equal(Run(least_squares(), CASES[name], stop).parameters, expected)


class Center:
    """A replica and its server: a checkpoint may be cut before any fetch, when a batch has been taken or not."""

    def __init__(self, algorithm, stop=None):
        self.center, self._next, vectors, counts, portion = stop or (np.ones(5), 0, {}, {}, 0)
        self.center, self._waiting, self.stops = self.center.copy(), 0, []
        self._state = ReplicaState(rate_at)
        self._state.load(vectors, counts, portion)
        replica = algorithm.replica(0, np.zeros(5), 1, self._state)
        actions = {NextBatch: self._batch, Fetch: self._fetch, Gradient: self._gradient, Push: self._push}
        for _ in drive(replica, {**actions, Clock: self._clock}):
            pass

    def _batch(self, request):
        yield from ()
        self._state.portion = self._next // 3
        self._next, self._waiting = self._next + 1, 1
        return self._next if self._next <= 20 else None

    def _fetch(self, request):
        yield from ()
        state = self._state
        kept = state.vectors(), dict(state.counts), state.portion
        self.stops.append((self.center.copy(), self._next - self._waiting, *kept))
        request.parameters[:] = self.center

    def _gradient(self, request):
        yield from ()
        self._waiting = 0
        return np.sin(request.parameters + request.batch)

    def _push(self, request):
        yield from ()
        self.center += 0.1 * request.vector.reshape(-1, 5)[0]

    def _clock(self, request):
        yield from ()


@pytest.mark.parametrize("name", THROUGH_SERVERS)
def test_a_run_may_be_cut_before_any_fetch(name):
    unbroken = Center(CASES[name])
    assert unbroken.stops
    for stop in unbroken.stops:
        assert Center(CASES[name], stop).center.tobytes() == unbroken.center.tobytes()


def test_what_is_kept_is_copied_and_loaded_into_the_replicas_own_memory():
    first, x = ReplicaState(), np.arange(3.0)
    assert first.keep("x", x) is x
    first.counts["done"] += 2
    vectors = first.vectors()
    x += 1
    second, y = ReplicaState(), np.zeros(3)
    second.load(vectors, first.counts, 7)
    assert second.portion == 7
    assert second.keep("x", y) is y
    assert y.tolist() == [0, 1, 2]
    assert second.counts == {"done": 2}
    vectors["x"][:] = 9
    assert y.tolist() == [0, 1, 2]
