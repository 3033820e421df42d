"""Loops of several replicas on a virtual cluster, which compute with one model in turn."""

import contextlib

import numpy as np
import pytest

from mpidl.algorithms import ALGORITHMS
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Gradient, NextBatch, Push
from mpidl.config import from_dict
from mpidl.data import Batch, Portions
from mpidl.data.dataset import ArraySplit
from mpidl.data.schedule import Schedule
from mpidl.engines.virtual import Times, Training, VirtualEngine, VirtualTime
from mpidl.engines.virtual.times import Exponential
from mpidl.loops.loop import class_in_loop
from mpidl.loops.model import OwnLoop
from mpidl.nn.adaptation import adapt
from mpidl.nn.model import GivenUp
from mpidl.parameters import shards
from mpidl.rules import Adam
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard

REPLICAS = 3
INPUTS = np.random.default_rng(0).normal(size=(90, 5))
SPLIT = ArraySplit(INPUTS, INPUTS @ np.arange(5.0)[:, None])
TIMES = Times(Exponential(1.0), Exponential(0.1), Exponential(0.05))


class Line:
    """Least squares."""

    def __init__(self):
        self.parameters = np.zeros(5)

    def loss_and_gradient(self, batch):
        error = batch.inputs @ self.parameters - batch.targets[:, 0]
        return float(error @ error) / 2 / len(error), batch.inputs.T @ error / len(error)


def in_loop(function, algorithm):
    model = Line()
    config = {"run": {"epochs": 1}, "data": {"source": "digits"}, "model": {"layer": [{"type": "dense", "units": 1}]}}
    found = from_dict(config | {"algorithm": {"name": algorithm}, "server": {"rule": "default"}})
    return OwnLoop(model, function, None, class_in_loop).around(adapt(model), found)


def trained(model, algorithm, times=TIMES, replicas=REPLICAS):
    parts = shards(5, 2 if algorithm.exchange.has_servers else replicas)
    own = [
        Shard(
            part, np.zeros(part.size), ScheduledRule(Adam(0.05) if algorithm.default_rule else None),
            algorithm.shard_policy(replicas), part.size,
        )
        for part in parts
    ]  # fmt: skip
    schedule = Schedule(Portions(90, 6, 12, seed=7), epochs=4)
    engine = VirtualEngine(Training(algorithm, model, SPLIT, schedule), own, replicas, time=VirtualTime(times, 3))
    totals = engine.run()
    return engine.parameters(), totals


def plain(replica):
    for batch in replica.batches():
        loss, gradient = of(replica.parameters, *batch)
        replica.step(loss, gradient=gradient)


def of(parameters, inputs, targets):
    line = Line()
    line.parameters = parameters
    return line.loss_and_gradient(Batch(inputs, targets))


@pytest.mark.parametrize("name", ["downpour", "ssp", "easgd", "diloco", "sync", "softsync", "rescaled"])
def test_a_loop_trains_as_a_model_does(name):
    # Where a step ends with a fetch, the last one's makes others come at other times.
    algorithm, times = ALGORITHMS[name](), None if name in ("downpour", "rescaled") else TIMES
    found, totals = trained(in_loop(plain, name), algorithm, times)
    expected, of_model = trained(adapt(Line()), algorithm, times)
    assert np.array_equal(found, expected)
    assert (totals.samples, totals.pushes, totals.loss) == (of_model.samples, of_model.pushes, of_model.loss)


def test_after_a_step_a_replica_has_its_own_push():
    seen = []

    def twice(replica):
        for inputs, targets in replica.batches():
            for _ in range(2):
                before = replica.parameters.copy()
                replica.step(gradient=of(before, inputs, targets)[1])
                seen.append(np.array_equal(before, replica.parameters))

    _, totals = trained(in_loop(twice, "downpour"), ALGORITHMS["downpour"]())
    assert totals.samples == 4 * 90
    assert totals.pushes == len(seen) == 2 * 4 * 15
    assert not any(seen)


def test_replicas_have_states_of_their_own():
    counts = {}

    def counted(replica):
        for batch in replica.batches():
            replica.state["steps"] = replica.state.get("steps", 0) + 1
            counts[replica.number] = replica.state["steps"]
            replica.log(steps=1.0)
            replica.step(gradient=of(replica.parameters, *batch)[1])

    _, totals = trained(in_loop(counted, "downpour"), ALGORITHMS["downpour"]())
    assert sorted(counts) == [0, 1, 2]
    assert sum(counts.values()) == totals.batches == totals.logged["steps"][0] == 4 * 15


def by_two(replica):
    sums = []
    for batch in replica.batches():
        sums.append(of(replica.parameters, *batch)[1])
        if len(sums) == 2:
            replica.step(gradient=sum(sums))
            sums.clear()
    if sums:
        replica.step(gradient=sum(sums))


def test_a_loop_goes_on_whose_batch_is_given_back_before_it_had_it():
    _, totals = trained(in_loop(by_two, "ringmaster"), ALGORITHMS["ringmaster"](max_delay=1))
    assert totals.samples == 4 * 90
    assert 4 * 15 / 2 <= totals.pushes <= 4 * 15 / 2 + REPLICAS
    assert totals.spent.stopped > 0


def twice(replica):
    for batch in replica.batches():
        for _ in range(2):
            replica.step(gradient=of(replica.parameters, *batch)[1])


def driven(loop, late, batches=6):
    """Return the kinds of requests of a loop by Ringmaster; `late` says whether a gradient is, given its `late_by`."""
    model, state, coming = in_loop(loop, "ringmaster"), ReplicaState(), iter(range(batches))
    requests = model.requests(ALGORITHMS["ringmaster"](max_delay=1), 0, model.parameters, 1, state)
    found, answer, late_by = [], None, None
    with contextlib.suppress(StopIteration):
        while True:
            request = requests.send(answer)
            found.append(type(request))
            if late_by is not None and not isinstance(request, Gradient):
                assert late_by(0) > 100, "what follows a step with the same batch is in time"
            answer = next(coming, None) if isinstance(request, NextBatch) else None
            if isinstance(request, Gradient):
                _, gradient = request.function(model, Batch(INPUTS[:6], INPUTS[:6, :1]))
                answer, late_by = (None, None) if late(request.late_by) else (gradient, request.late_by)
    return found


@pytest.mark.parametrize(("loop", "pushes"), [(plain, 0), (by_two, 3), (twice, 0)])
def test_sums_of_gradients_are_in_time_and_late_batches_come_again_with_all_steps(loop, pushes):
    """All shards are far ahead whenever a gradient has been computed."""
    assert driven(loop, lambda by: by(0) < 100).count(Push) == pushes


def test_steps_with_a_batch_whose_first_one_was_in_time_are_in_time():
    assert driven(twice, lambda by: False).count(Push) == 12


def test_data_that_end_within_a_sum_make_no_step_without_a_gradient():
    def without_rest(replica):
        for number, batch in enumerate(replica.batches()):
            if number % 2:
                replica.step(gradient=of(replica.parameters, *batch)[1])

    assert driven(without_rest, lambda by: False, batches=5).count(Push) == 2


def test_a_run_that_stops_ends_a_loop_at_its_next_step():
    ended = []

    def with_rest(replica):
        try:
            for batch in replica.batches():
                last = batch
            replica.step(gradient=of(replica.parameters, *last)[1])
        finally:
            ended.append(replica.number)

    model = in_loop(with_rest, "downpour")
    requests = model.requests(ALGORITHMS["downpour"](), 0, model.parameters, 1, ReplicaState())
    while not isinstance(request := requests.send(None), NextBatch):
        pass
    while not isinstance(request := requests.send(0), Gradient):
        pass
    request.function(model, Batch(INPUTS[:6], INPUTS[:6, :1]))
    requests.close()
    assert ended == [0]


def test_an_item_whose_body_makes_no_step_comes_once():
    items = []

    def own(replica):
        for item in replica.share(range(100)):
            items.append(item)
            if item % 2 == 0 or items.count(item) == 1:
                replica.step(gradient=np.ones(5))

    model, calls = in_loop(own, "ringmaster"), []
    gradient = model.step_gradient

    def late_once(*given):
        calls.append(given)
        if len(calls) == 2:
            raise GivenUp("late")
        return gradient(*given)

    model.step_gradient = late_once
    trained(model, ALGORITHMS["ringmaster"](), replicas=1)
    assert items[:5] == [0, 1, 1, 2, 3]


def test_an_item_comes_again_whose_step_was_late():
    items, pushed = [], []

    def own(replica):
        for item in replica.share(range(100)):
            items.append(item)
            replica.step(gradient=np.ones(5))
            if len(items) % 3:
                pushed.append(item)

    model, calls = in_loop(own, "ringmaster"), []
    gradient = model.step_gradient

    def late_every_third_time(*given):
        calls.append(given)
        if len(calls) % 3 == 0:
            raise GivenUp("late")
        return gradient(*given)

    model.step_gradient = late_every_third_time
    _, totals = trained(model, ALGORITHMS["ringmaster"](), replicas=1)
    assert pushed == [*range(4 * 15)]
    assert totals.pushes == 4 * 15 < len(items)
