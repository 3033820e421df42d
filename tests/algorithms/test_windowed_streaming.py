"""Streaming DiLoCo on the virtual engine, against DiLoCo and against a loop written from the paper, in float64."""

import contextlib
from collections import deque
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from mpidl.algorithms import Diloco
from mpidl.algorithms.diloco import stream
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import FinishReduction, Gradient, NextBatch, StartReduction, drive
from mpidl.data import Portions
from mpidl.data.schedule import Schedule
from mpidl.engines.virtual import Training, VirtualEngine, VirtualTime
from mpidl.engines.virtual.times import Constant, Death, Exponential, Times
from mpidl.errors import UsageError
from mpidl.nn import adapt
from mpidl.parameters import Range, held_by_replicas, split
from mpidl.rules import Adamw, Nesterov
from mpidl.rules.segments import Segment
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard

BATCH, EVEN, REPLICAS = 8, Times(Constant(1.0), Constant(0.125)), 3
OUTER = Nesterov(0.7, 0.9)


def engine_of(problem, algorithm, replicas=REPLICAS, epochs=4, times=EVEN, parts=None, segments=(), rule=OUTER):
    model, split_ = problem
    size, count = model.parameters.size, max(1, algorithm.streamed)
    parts = parts or split(size, count)
    shards = [
        Shard(
            each.range,
            model.parameters[slice(*each.range)].copy(),
            ScheduledRule(rule, segments=[each._replace(rate=1.0) for each in segments if each.frozen]),
            algorithm.shard_policy(replicas),
            2,
        )
        for each in held_by_replicas([Range(0, size)], replicas, [parts])
    ]
    schedule = Schedule(Portions(split_.samples, BATCH, BATCH, seed=7), epochs=epochs)
    training = Training(
        algorithm, adapt(model), split_, schedule, partial(ReplicaState, segments=segments, fragments=parts)
    )
    return VirtualEngine(training, shards, replicas, time=VirtualTime(times, 3))


def trained(problem, algorithm, **options):
    engine = engine_of(problem, algorithm, **options)
    engine.run()
    return engine.parameters()


@dataclass(frozen=True)
class Streamed(Diloco):
    """DiLoCo by the generator of the streaming form, also where it has one fragment and no overlap."""

    @property
    def streamed(self):
        return self.fragments

    def replica(self, number, parameters, replicas, state):
        step = self.inner_steps(parameters, state)
        return stream(parameters, step, state, self.window, self.fragments, self.overlap, self.mixing)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("window", [1, 4, 5])
@pytest.mark.parametrize("replicas", [1, 3])
def test_one_fragment_without_overlap_is_diloco_bit_for_bit(least_squares, dtype, window, replicas):
    # 4 * 13 batches: the last round of 3 replicas is not even, and some have no batch in it.
    options = {"rate": 0.01, "window": window}
    found = trained(least_squares(dtype=dtype), Streamed(**options), replicas=replicas)
    plain = trained(least_squares(dtype=dtype), Diloco(**options), replicas=replicas)
    assert found.tobytes() == plain.tobytes()


def reference(lab, problem, window, parts, overlap, mixing, epochs):
    """Algorithm 2 of the paper, step by step and all replicas at once; returns the common parameters in the end."""
    x, inner = problem[0].parameters.copy(), Adamw(0.01)
    batches = lab.batches(problem, epochs)
    local, common = [x.copy() for _ in range(REPLICAS)], x.copy()
    states, steps = [inner.init(x) for _ in range(REPLICAS)], [0] * REPLICAS
    velocity, offsets = np.zeros_like(x), [p * window // len(parts) for p in range(len(parts))]
    sent = {}
    last = -(-len(batches) // REPLICAS)
    counted = {p: [0] * REPLICAS for p in range(len(parts))}
    for t in range(1, last + 2 * window + overlap + 1):
        for m in range(REPLICAS):
            number = (t - 1) * REPLICAS + m
            if number < len(batches):
                steps[m] += 1
                inner.update(local[m], states[m], lab.gradient(problem, local[m], batches[number]), steps[m])
        for p, part in enumerate(parts):
            own = slice(*part)
            if (t - offsets[p]) % window == 0:
                moved = [m for m in range(REPLICAS) if steps[m] > counted[p][m]]
                counted[p] = list(steps)
                if moved:
                    sent[p, t] = np.mean([common[own] - local[m][own] for m in moved], axis=0)
            if (p, t - overlap) in sent:
                change = sent[p, t - overlap]
                velocity[own] = 0.9 * velocity[own] + change
                common[own] = common[own] - 0.7 * (change + 0.9 * velocity[own])
                for each in local:
                    each[own] = mixing * each[own] + (1 - mixing) * common[own]
    return common


@pytest.mark.parametrize(
    ("window", "stops", "overlap", "mixing"),
    [
        (6, [4, 9, 13], 2, 0.5),
        (6, [4, 9, 13], 0, 0.0),
        (6, [4, 9, 13], 5, 0.25),
        (7, [3, 10, 13], 3, 0.0),
        (3, [4, 9, 13], 2, 0.5),
        (5, [13], 2, 0.5),
        (5, [7, 13], 1, 0.9),
    ],
)
@pytest.mark.parametrize("times", [EVEN, Times(Constant(1.0), Exponential(0.7))])
def test_it_is_the_algorithm_of_the_paper(lab, least_squares, window, stops, overlap, mixing, times):
    parts = [Range(*pair) for pair in zip([0, *stops[:-1]], stops, strict=True)]
    algorithm = Diloco(rate=0.01, window=window, fragments=len(parts), overlap=overlap, mixing=mixing)
    problem = least_squares()
    expected = reference(lab, problem, window, parts, overlap, mixing, 4)
    found = trained(least_squares(), algorithm, parts=parts)
    assert found == pytest.approx(expected, rel=1e-10)


def test_replicas_have_the_same_values_of_a_fragment_after_each_exchange(least_squares):
    """Without mixing, and whichever replica is slow."""
    values = {}

    class Watched(Diloco):
        def replica(self, number, parameters, replicas, state):
            requests, given, parts = super().replica(number, parameters, replicas, state), None, deque()
            with contextlib.suppress(StopIteration):
                while True:
                    request = requests.send(given)
                    if isinstance(request, StartReduction):
                        parts.append(request.part)
                    given = yield request
                    if isinstance(request, FinishReduction):
                        part = parts.popleft()
                        if given:
                            found = values.setdefault((part, number), [])
                            found.append(request.vector[slice(*part)].tobytes())

    algorithm = Watched(rate=0.01, window=6, fragments=3, overlap=2)
    engine = engine_of(least_squares(), algorithm, times=Times(Exponential(1.0), Exponential(0.3)), epochs=8)
    totals = engine.run()
    assert totals.samples == 8 * 101
    assert len(values) == 3 * REPLICAS
    for part in split(13, 3):
        first, *others = [values[part, number] for number in range(REPLICAS)]
        assert len(first) > 3
        assert all(other == first for other in others)
    assert engine.parameters().tobytes() == b"".join(values[part, 0][-1] for part in split(13, 3))


def test_an_exchange_takes_no_time_if_it_ends_within_the_overlap(least_squares):
    times = Times(Constant(1.0), Constant(0.0), bandwidth=13 * 8 / 2.0)  # a whole exchange: 2 * 2/3 * 2 seconds
    durations = {}
    for overlap in (0, 1, 2, 5):
        algorithm = Diloco(rate=0.01, window=6, fragments=1, overlap=overlap)
        durations[overlap] = engine_of(least_squares(), algorithm, times=times, epochs=30).run().seconds
    steps = 30 * 13 / 3
    exchange = durations[0] - steps
    assert exchange > 0.3 * steps
    # The last exchange, at least, isn't hidden.
    assert durations[5] - steps < 0.1 * exchange
    assert durations[5] <= durations[2] < durations[1] < durations[0]


def test_frozen_parameters_keep_their_bits(least_squares):
    segments = [Segment(Range(3, 7), frozen=True)]
    algorithm = Diloco(rate=0.01, window=5, fragments=3, overlap=2, mixing=0.3)
    before = least_squares(dtype="float32")[0].parameters.copy()
    found = trained(least_squares(dtype="float32"), algorithm, segments=segments)
    assert found[3:7].tobytes() == before[3:7].tobytes()
    assert (found[:3] != before[:3]).all()


def test_a_replica_that_dies_leaves_the_others_to_go_on(least_squares):
    times = Times(Exponential(1.0), Exponential(0.3), deaths=(Death(1, at=20.5),))
    algorithm = Diloco(rate=0.01, window=6, fragments=3, overlap=2, mixing=0.5)
    engine = engine_of(least_squares(), algorithm, times=times, epochs=6)
    totals = engine.run()
    # What the dead one had computed and not given whole is computed again.
    assert totals.samples >= 6 * 101
    assert np.isfinite(engine.parameters()).all()


def test_it_trains(lab, least_squares):
    model, data = least_squares()
    before = model.loss_and_gradient(data.gather(np.arange(101)))[0]
    algorithm = Diloco(rate=0.02, window=8, fragments=4, overlap=3, mixing=0.5)
    model.parameters[:] = trained(least_squares(), algorithm, epochs=60, times=lab.random_times)
    assert model.loss_and_gradient(data.gather(np.arange(101)))[0] < 0.5 * before


class Alone:
    """A replica that is alone; notes how many of its batches aren't in all fragments, by itself and as it is told."""

    def __init__(self, algorithm, batches):
        self.found, self.expected = [], []
        self._left, self._computed, self._started = batches, 0, []
        self._in = dict.fromkeys(split(12, algorithm.fragments), 0)
        actions = {NextBatch: self._batch, Gradient: self._gradient, StartReduction: self._start}
        replica = algorithm.replica(0, np.zeros(12), 1, ReplicaState())
        for _ in drive(replica, {**actions, FinishReduction: self._finish}):
            pass

    def _batch(self, request):
        yield from ()
        self._left -= 1
        return "batch" if self._left >= 0 else None

    def _gradient(self, request):
        yield from ()
        self._computed += 1
        return np.ones(12)

    def _start(self, request):
        yield from ()
        self._started.append((request.part, self._computed, request.weight))

    def _finish(self, request):
        yield from ()
        part, computed, weight = self._started.pop(0)
        self._in[part] = computed
        self.found.append(request.rest)
        self.expected.append(self._computed - min(self._in.values()))
        return int(weight > 0)


@pytest.mark.parametrize("overlap", [0, 1, 4])
@pytest.mark.parametrize("fragments", [1, 2, 3])
def test_it_says_how_many_batches_are_not_in_all_fragments(fragments, overlap):
    found = Alone(Streamed(rate=1.0, window=5, inner="sgd", fragments=fragments, overlap=overlap), 23)
    assert found.found == found.expected
    assert max(found.found) >= overlap
    assert found.found[-1] == 0


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"fragments": 17}, "fragments: 17, expected at most 16 with window = 16"),
        ({"overlap": 16}, "overlap: 16, expected at most 15 with window = 16"),
        ({"window": 1, "overlap": 1}, "overlap: 1, expected at most 0 with window = 1"),
        ({"fragments": 2, "asynchronous": True}, "fragments: 2, can't be combined with asynchronous"),
        ({"overlap": 1, "asynchronous": True}, "overlap: 1, can't be combined with asynchronous"),
        ({"mixing": 0.5}, "mixing: 0.5, expected 0 without fragments or overlap"),
        ({"dynamic": True, "asynchronous": True}, "dynamic: true, can't be combined with asynchronous"),
        ({"dynamic": True, "fragments": 2}, "dynamic: true, can't be combined with fragments"),
        ({"quorum": 2, "asynchronous": True}, "quorum: 2, can't be combined with asynchronous"),
        ({"quorum": 2, "fragments": 2}, "quorum: 2, can't be combined with fragments"),
        ({"quorum": 2, "overlap": 1}, "quorum: 2, can't be combined with overlap"),
        ({"quorum": 2, "dynamic": True}, "quorum: 2, can't be combined with dynamic"),
        ({"quorum": 0}, "Diloco.quorum: expected int >= 1, found 0"),
        ({"grace": 0.5}, "grace: 0.5, expected 0 without quorum"),
        ({"quorum": 1, "grace": -1.0}, "Diloco.grace: expected float >= 0, found -1.0"),
    ],
)
def test_settings_that_do_not_go_together(settings, line):
    with pytest.raises(UsageError) as error:
        Diloco(**settings)
    assert str(error.value) == line
