"""Rounds of a quorum with a grace window, on the virtual engine in float64, against a model of the protocol."""

from functools import partial
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpidl.algorithms import ALGORITHMS, BackupSync, Diloco
from mpidl.config import from_dict
from mpidl.engines.virtual.times import Constant, Exponential, Times, Uniform
from mpidl.errors import UsageError
from mpidl.job.build import build
from mpidl.job.placed import place
from mpidl.rules import Nesterov, Sgd

EVEN = Times(Constant(1.0), Constant(0.125))
OUTER = Nesterov(0.7, 0.9)


@pytest.fixture
def lab(lab):
    """A lab whose time begins at 0, so that sums of times are exact."""
    lab.start = 0.0
    return lab


class Watched:
    """An engine whose shards note when pushes arrive, workers leave and updates are made.

    Attributes
    ----------
    events : list of list of tuple
        For each shard, (time, worker, fetched, values) of a push, or (time, worker) of a worker that leaves.
    updates : list of list of tuple
        For each shard, the time of each update and the parameters after it.
    """

    def __init__(self, engine):
        self.engine, self.start = engine, engine.parameters()
        self.events, self.updates = [[] for _ in engine.shards], [[] for _ in engine.shards]
        for number, shard in enumerate(engine.shards):
            for name in ("receive_push", "remove_worker", "update"):
                setattr(shard, name, partial(getattr(self, name), number, getattr(shard, name)))
        self.totals = engine.run()

    @property
    def now(self):
        return self.engine.now

    def receive_push(self, number, receive, worker, fetched, values, portions):
        self.events[number].append((self.now, worker, fetched, values.copy()))
        receive(worker, fetched, values, portions)

    def remove_worker(self, number, remove, worker):
        self.events[number].append((self.now, worker))
        remove(worker)

    def update(self, number, update, *arguments):
        update(*arguments)
        self.updates[number].append((self.now, self.engine.shards[number].parameters.copy()))


def protocol(events, start, rule, replicas, quorum, grace):
    """Return what must come of a shard's events: its updates, as `Watched.updates`, each with its givers, and drops."""
    parameters, state = start.copy(), rule.init(start)
    active, given, end = set(range(replicas)), {}, inf
    updates, dropped = [], []

    def complete(now):
        mean = sum(given.values()) / len(given)
        rule.update(parameters, state, mean, len(updates) + 1)
        updates.append((now, parameters.copy(), sorted(given)))
        given.clear()

    for now, worker, *push in [*events, (inf, -1)]:
        if end < now:
            complete(end)
            end = inf
        if not push:
            active.discard(worker)
        elif push[0] == len(updates):
            given[worker] = push[1]
        else:
            dropped.append(worker)
        if given and (active <= given.keys() or (not grace and len(given) >= quorum)):
            complete(now)
            end = inf
        elif end == inf and len(given) >= quorum:
            end = now + grace
    return updates, dropped


def check(watched, algorithm, rule, replicas, quorum):
    """Compare a run with the model of the protocol; return the givers of the first shard's updates, and its drops."""
    assert not any(replica.active for replica in watched.engine.replicas), "a replica waits for ever"
    found = []
    for shard, events, updates in zip(watched.engine.shards, watched.events, watched.updates, strict=True):
        start = watched.start[slice(*shard.range)]
        expected, dropped = protocol(events, start, rule, replicas, quorum, algorithm.grace)
        assert [now for now, _ in updates] == pytest.approx([now for now, *_ in expected], rel=1e-12)
        for (_, parameters), (_, by_model, _) in zip(updates, expected, strict=True):
            assert parameters == pytest.approx(by_model, rel=1e-12, abs=1e-12)
        assert shard.dropped == len(dropped)
        assert shard.clock == len(updates)
        used = sum(len(givers) for *_, givers in expected)
        assert used + len(dropped) == shard.pushes == watched.totals.pushes
        found.append(([givers for *_, givers in expected], dropped))
    assert watched.totals.samples % 101 == 0
    return found[0]


# One round is 4 steps of 1 s on replica 0, 4.8 s on replica 1, 6 s on replica 2, and 12 s on replica 3.
SLOW = {1: 1.2, 2: 1.5, 3: 3.0}


@pytest.mark.parametrize(
    ("replicas", "quorum", "grace", "ends", "givers"),
    [
        (3, 2, 0.0, 4.8, [0, 1]),
        (3, 2, 0.5, 5.3, [0, 1]),
        (3, 2, 2.0, 6.0, [0, 1, 2]),  # all are there before the window ends
        (4, 2, 2.0, 6.8, [0, 1, 2]),
        (4, 2, 30.0, 12.0, [0, 1, 2, 3]),
        (4, 1, 1.0, 5.0, [0, 1]),
        (4, 3, 0.0, 6.0, [0, 1, 2]),
        (4, 4, 0.0, 12.0, [0, 1, 2, 3]),
    ],
)
def test_a_round_has_what_came_within_the_window(lab, least_squares, replicas, quorum, grace, ends, givers):
    algorithm = Diloco(rate=0.01, window=4, quorum=quorum, grace=grace)
    times = Times(Constant(1.0), slow=SLOW)
    options = {"rule": OUTER, "servers": 1, "replicas": replicas, "epochs": 8, "times": times}
    watched = Watched(lab.engine(least_squares(), algorithm, **options))
    check(watched, algorithm, OUTER, replicas, quorum)
    (ended, parameters), *_ = watched.updates[0]
    assert ended == pytest.approx(ends)
    first = [each for each in watched.events[0] if len(each) == 4 and each[2] == 0]
    changes = [values for _, worker, _, values in first if worker in givers]
    assert len(changes) == len(givers)
    # Nesterov's first step, from rest.
    expected = watched.start - 0.7 * (1 + 0.9) * np.mean(changes, axis=0)
    assert parameters == pytest.approx(expected, rel=1e-12)
    # Replicas that wait go on at once.
    second = [now for now, worker, *push in watched.events[0] if worker == 0 and push][1]
    assert second == pytest.approx(ends + 4.0)


def test_who_comes_too_late_is_dropped_and_goes_on_from_the_new_parameters(lab, least_squares):
    dropped = []
    times = Times(Constant(1.0), slow={2: 1.7})
    engine = lab.engine(
        least_squares(), Diloco(rate=0.01, window=4, quorum=2), rule=OUTER, servers=1, replicas=3, epochs=4, times=times
    )
    engine.shards[0].on_drop = lambda push: dropped.append((push.worker, push.staleness))
    watched = Watched(engine)
    # Its first round ends at 6.8 s, when the others have ended theirs at 4 s.
    assert dropped[0] == (2, 1)
    late = [(now, fetched) for now, worker, *push in watched.events[0] if worker == 2 for fetched in push[:1]]
    assert late[:2] == [(pytest.approx(6.8), 0), (pytest.approx(13.6), 1)]
    assert watched.totals.shards.dropped == len(dropped)


@given(
    replicas=st.integers(1, 5),
    quorum=st.integers(1, 5),
    grace=st.sampled_from([0.0, 0.013]) | st.floats(0.1, 6),  # A push in a queue comes multiples of 0.01 s later.
    window=st.integers(1, 4),
    servers=st.integers(1, 3),
    latency=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=80)
def test_rounds_follow_the_protocol(lab, least_squares, replicas, quorum, grace, window, servers, latency, seed):
    quorum = min(quorum, replicas)
    algorithm = Diloco(rate=0.01, window=window, quorum=quorum, grace=grace)
    times = Times(Exponential(1.0), Exponential(0.3) if latency else Constant(), Constant(0.01), slow={1: 2.5})
    options = {"servers": servers, "replicas": replicas, "epochs": 3, "times": times, "seed": seed}
    check(Watched(lab.engine(least_squares(), algorithm, rule=OUTER, **options)), algorithm, OUTER, replicas, quorum)


@given(
    replicas=st.integers(1, 5),
    backup=st.integers(0, 3),
    grace=st.sampled_from([0.0]) | st.floats(0.01, 3),
    seed=st.integers(0, 99),
)
@settings(max_examples=50)
def test_steps_with_backup_workers_follow_the_protocol(lab, least_squares, replicas, backup, grace, seed):
    algorithm, rule = BackupSync(backup, grace), Sgd(0.05)
    times = Times(Uniform(0.5, 1.5), Exponential(0.05))
    options = {"replicas": replicas, "epochs": 3, "times": times, "seed": seed}
    watched = Watched(lab.engine(least_squares(), algorithm, rule=rule, **options))
    check(watched, algorithm, rule, replicas, max(1, replicas - backup))


def test_a_longer_window_drops_less(lab, least_squares):
    def dropped(grace):
        algorithm = Diloco(rate=0.01, window=2, quorum=2, grace=grace)
        times = Times(Exponential(1.0))
        engine = lab.engine(least_squares(), algorithm, rule=OUTER, replicas=4, servers=1, epochs=8, times=times)
        return engine.run().shards.dropped

    found = [dropped(grace) for grace in (0.0, 1.0, 100.0)]
    assert found[0] > found[1] > found[2] == 0


@pytest.mark.parametrize("window", [1, 3, 4])
@pytest.mark.parametrize("servers", [1, 3])
def test_a_quorum_of_all_is_plain_diloco_bit_for_bit(lab, least_squares, window, servers):
    options = {"rule": OUTER, "replicas": 3, "servers": servers, "times": EVEN}
    plain = lab.trained(least_squares(), Diloco(rate=0.01, window=window), **options)
    found = lab.trained(least_squares(), Diloco(rate=0.01, window=window, quorum=3), **options)
    # Changes that arrive together are summed in the replicas' order.
    assert np.array_equal(found, plain)
    assert not np.array_equal(found, least_squares()[0].parameters)


def configured(algorithm, **run):
    layer = {"type": "dense", "units": 10}
    return from_dict({"data": {"source": "digits"}, "model": {"layer": [layer]}, "algorithm": algorithm, "run": run})


@pytest.mark.parametrize(
    ("algorithm", "key", "value"),
    [
        ({"name": "backup_sync"}, "grace", 0.5),
        ({"name": "diloco", "quorum": 2}, "grace", 0.5),
        *(({"name": name}, "dynamic", True) for name in ("averaging", "diloco", "fedprox")),
    ],
)
def test_what_depends_on_timing_is_not_deterministic(algorithm, key, value):
    configured(algorithm, deterministic=True)
    with pytest.raises(UsageError) as error:
        configured(algorithm | {key: value}, deterministic=True)
    found = str(value).lower()
    rest = "depends on timing, which rules out run.deterministic = true"
    assert str(error.value) == f"algorithm.{key}: {found} {rest}"


def test_a_quorum_is_of_the_replicas_that_there_are():
    job = build(configured({"name": "diloco", "quorum": 3}))
    place(job, 3)
    with pytest.raises(UsageError, match=r"^algorithm.quorum: 3, expected at most 2, the number of replicas$"):
        place(job, 2)
    deterministic = build(configured({"name": "diloco", "quorum": 3}, deterministic=True))
    place(deterministic, 3)
    with pytest.raises(UsageError) as error:
        place(deterministic, 4)
    assert str(error.value) == (
        "algorithm.quorum: 3 of 4 replicas depends on timing, which rules out run.deterministic = true, expected 4"
    )


def test_algorithms_take_any_number_of_replicas_otherwise():
    for algorithm in ALGORITHMS.values():
        algorithm().check_replicas(1, True)
