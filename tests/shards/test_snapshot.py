"""Snapshots between interleaved pushes: the copy is the shard that received what came before the marks, bit for bit."""

import math
from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shard_cases import CASES, WORKERS, assert_same, is_open, listed, make, values_of

from mpidl.parameters import Range
from mpidl.rules import Sgd
from mpidl.shards.policies import FirstOfStep, drop_above
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard, Snapshot
from rows import in_turn


class Served:
    """A shard with its snapshot, as a server has them, and workers that push, mark and leave.

    Attributes
    ----------
    expected : Shard or None
        A shard of its own that receives, from the first chunk on, what belongs to the snapshot.
    """

    def __init__(self, *arguments):
        self._arguments = arguments
        self.shard = make(*arguments)
        self.snapshot, self.expected = Snapshot(self.shard), None
        self.ordered, self._begun = 0, 0
        self._marked, self._next, self._fetched = Counter(), Counter(), {}
        self._training, self._awaited = set(range(WORKERS)), set()
        self._log, self._clock = [], 0

    @property
    def complete(self):
        return self._begun > 0 and not self._awaited

    def act(self, worker, action, lag=0):
        """Let a worker do something, if it can at this moment, or let time pass."""
        if action == "wait":
            self.shard.pass_time(math.inf)
            self._log.append("wait")
            return
        if worker not in self._training:
            return
        number, arrived = divmod(self._next[worker], self.shard.chunks)
        if action == "push" or arrived:
            self._push(worker, number, arrived, lag)
        elif action == "leave":
            self._awaited.discard(worker)
            self._training.discard(worker)
            self.snapshot.mark(worker)
            self.shard.remove_worker(worker)
            self._log.append(worker)
            self._end_if_complete()
        elif action == "mark" and self._marked[worker] < self.ordered:
            self._mark(worker)

    def _push(self, worker, number, arrived, lag):
        if not arrived:
            # A worker that has not marked computes with nothing that came after the snapshot.
            newest = min(self.shard.clock, self._clock) if worker in self._awaited else self.shard.clock
            self._fetched[worker] = max(4, newest - lag)
        chunk = self.shard.chunks - 1 - arrived
        values = values_of(self.shard, worker, number, chunk)
        received = (worker, chunk, self._fetched[worker], values, (number, number + worker))
        self._next[worker] += 1
        self.shard.receive_chunk(*received)
        self.snapshot.receive_chunk(*received)
        self._log.append(received)
        if worker in self._awaited:
            self.expected.receive_chunk(*received)

    def _mark(self, worker):
        self._marked[worker] = self.ordered
        if self._begun < self.ordered:
            self._begun, self._clock = self.ordered, self.shard.clock
            self._awaited = set(self._training)
            self.snapshot.begin(self._training)
            self.expected = make(*self._arguments)
            for each in self._log:
                if each == "wait":
                    self.expected.pass_time(math.inf)
                elif isinstance(each, tuple):
                    self.expected.receive_chunk(*each)
                else:
                    self.expected.remove_worker(each)
        self._awaited.discard(worker)
        self.snapshot.mark(worker)
        self._end_if_complete()

    def _end_if_complete(self):
        """Steps that have what they need end with the snapshot."""
        if self.complete:
            self.expected.pass_time(math.inf)

    def check(self):
        if self._begun:
            assert self.snapshot.complete == self.complete
            assert_same(listed(self.snapshot.copy), listed(self.expected))


ACTIONS = ["push"] * 8 + ["mark"] * 2 + ["order"] + ["leave"] + ["wait"] * 2


@st.composite
def happenings(draw):
    size = draw(st.integers(1, 21))
    action = st.tuples(st.integers(0, WORKERS - 1), st.sampled_from(ACTIONS), st.integers(0, 3))
    return {
        "size": size,
        "chunk": draw(st.integers(1, size + 2)),
        "dtype": draw(st.sampled_from(["float32", "float64"])),
        "actions": draw(st.lists(action, max_size=80)),
    }


def check(case, size, chunk, dtype, actions, xp=None):
    served = Served(case, size, chunk, dtype, xp)
    served.ordered = 1
    for worker, action, lag in actions:
        # An order gives up what is not complete of the one before.
        served.ordered += action == "order"
        served.act(worker, action, lag)
        served.check()
    for worker in range(WORKERS):
        served.act(worker, "push")
        while is_open(served.shard, worker):
            served.act(worker, "push")
        served.act(worker, "mark")
    if served.snapshot.complete and served.complete:
        state = listed(served.snapshot.copy)
        for worker in range(WORKERS):
            served.act(worker, "push")
        assert_same(listed(served.snapshot.copy), state)
    served.check()


@pytest.mark.parametrize("case", CASES)
@given(happenings=happenings())
def test_the_copy_is_the_shard_that_received_what_came_before_the_marks(case, happenings):
    check(case, **happenings)


@pytest.mark.parametrize("case", CASES)
def test_the_copy_of_a_shard_on_a_device(cupy, case):
    random = np.random.default_rng(5)
    actions = [
        (int(random.integers(WORKERS)), ACTIONS[random.integers(10)], int(random.integers(3))) for _ in range(70)
    ]
    check(case, 21, 4, "float32", actions, cupy)


def test_the_next_cut_has_the_same_memory():
    served = Served("delay_compensated_adaptively", 21, 4, "float32")
    copies = []
    for served.ordered in (1, 2, 3):
        for worker in range(WORKERS):
            served.act(worker, "push")
            while is_open(served.shard, worker):
                served.act(worker, "push")
            served.act(worker, "mark")
        assert served.snapshot.complete
        served.check()
        copies.append((served.snapshot.copy, *served.snapshot.copy.vectors.values()))
    assert all(mine is first for copy in copies for mine, first in zip(copy, copies[0], strict=True))
    assert not np.shares_memory(served.snapshot.copy.parameters, served.shard.parameters)


def test_a_cut_of_nobody_is_complete():
    shard = make("gather", 21, 4, "float32")
    snapshot = Snapshot(shard)
    snapshot.begin(())
    assert snapshot.complete
    assert_same(listed(snapshot.copy), listed(shard))


def test_what_a_copy_drops_is_not_reported_twice():
    shard = make("drop", 6, 2, "float32")
    reported = []
    shard.on_drop = reported.append
    shard.clock = 9
    snapshot = Snapshot(shard)
    snapshot.begin([0])
    for chunk, piece in reversed([*enumerate(shard.pieces)]):
        received = (0, chunk, 4, np.ones(piece.size, np.float32), (0, 0))
        shard.receive_chunk(*received)
        snapshot.receive_chunk(*received)
    assert len(reported) == 1
    assert (shard.dropped, snapshot.copy.dropped) == (1, 1)


@pytest.mark.parametrize("ended", [0, 1, 2])
@pytest.mark.parametrize("late", [False, True])
def test_the_copies_of_all_shards_are_at_one_step_whenever_that_ended(ended, late):
    """Two of three have pushed: on some shards the window has ended, before the snapshot or in it."""
    served = Served("first_with_grace", 21, 4, "float64")
    served.ordered = 1

    def push(worker):
        served.act(worker, "push", lag=1)  # All have fetched at clock 4, the first.
        while is_open(served.shard, worker):
            served.act(worker, "push")

    push(0)
    push(1)
    for moment, worker in enumerate((0, 1, 2)):
        if moment == ended:
            served.act(0, "wait")
        if late and worker == 2:
            push(2)
        served.act(worker, "mark")
    served.check()
    copy = served.snapshot.copy
    assert copy.clock == 5
    assert copy.pushes == 2 + late
    assert copy.dropped == (late and not ended)
    assert not copy.state()["policy/givers"].any()
    assert not copy.state()["policy/sum"].any()


# States at rest, in a shard of other chunks or with other workers.


def push_all(shard, pushes, workers=WORKERS):
    for number in range(pushes):
        worker = number % workers
        size = (2, shard.range.size) if shard.policy.compares else shard.range.size
        values = np.random.default_rng(number).normal(size=size).astype(shard.parameters.dtype)
        shard.receive_push(worker, shard.clock, values, (number, number))


CHUNKS_AND_PUSHES = list(product([(21, 4), (4, 21), (4, 5), (1, 30)], [0, 1, 4, 5]))


# The norm is that of a chunk.
@pytest.mark.parametrize(
    ("case", "chunks", "pushes"), in_turn(sorted(CASES.keys() - {"adag_by_norm"}), CHUNKS_AND_PUSHES, each=4)
)
def test_a_state_at_rest_fits_a_shard_of_other_chunks(case, chunks, pushes):
    first, second = (make(case, 21, chunk, "float64") for chunk in chunks)
    push_all(first, pushes)
    second.load(listed(first))
    push_all(first, 4)
    push_all(second, 4)
    first.apply_rest()
    second.apply_rest()
    assert second.parameters.tobytes() == first.parameters.tobytes()
    vectors = (shard.saved_vectors() for shard in (first, second))
    assert_same(*({name: np.array(vector) for name, vector in each.items()} for each in vectors))
    assert (second.clock, second.pushes, second.dropped) == (first.clock, first.pushes, first.dropped)


def first_of_step(count, workers):
    return Shard(Range(0, 5), np.zeros(5), ScheduledRule(Sgd(1.0)), FirstOfStep(count, workers), 2)


def loaded(shard, other):
    other.load(listed(shard))
    other.policy.expect_all()
    return other


def begun_anew(shard, other, workers):
    other.load(listed(shard))
    for worker in range(workers):
        other.add_worker(worker)
    return other


@pytest.mark.parametrize(("workers", "resumes"), [(2, 1), (3, 2), (4, 1), (7, 3)])
def test_a_step_in_work_goes_on_with_workers_that_begin_anew(workers, resumes):
    """The gradient that worker 0 had given counts as that of a worker of its own, however often the run is resumed."""
    shard = first_of_step(3, 4)
    shard.receive_push(0, 0, np.full(5, 3.0))
    for _ in range(resumes):
        shard = begun_anew(shard, first_of_step(3, workers), workers)
    shard.receive_push(0, 0, np.full(5, 6.0))
    assert shard.clock == 0
    shard.receive_push(1, 0, np.full(5, 9.0))
    assert shard.clock == 1
    assert shard.parameters.tolist() == [-6.0] * 5


@pytest.mark.parametrize("grace", [0.0, 100.0])
def test_a_step_waits_for_who_gave_to_it_and_begins_anew(grace):
    shard = Shard(Range(0, 5), np.zeros(5), ScheduledRule(Sgd(1.0)), drop_above(9, FirstOfStep(3, 3, grace)), 2)
    shard.receive_push(1, 0, np.full(5, 3.0))
    shard.remove_worker(1)
    shard.receive_push(0, 0, np.full(5, 9.0))
    shard.add_worker(1)
    assert shard.clock == 0
    shard.receive_push(1, 0, np.full(5, 6.0))
    if grace:
        # Three have given, and worker 2 may still join.
        assert shard.pass_time(0.0) == grace
        shard.pass_time(grace)
    assert shard.clock == 1
    assert shard.parameters.tolist() == [-6.0] * 5
    # The next step expects it, too.
    for worker, clock in ((0, 1), (2, 1), (1, 2)):
        shard.receive_push(worker, 1, np.zeros(5))
        assert shard.clock == clock


def test_a_step_waits_within_its_window_for_who_begins_anew():
    shard = Shard(Range(0, 5), np.zeros(5), ScheduledRule(Sgd(1.0)), FirstOfStep(1, 2, 100.0), 2)
    shard.receive_push(1, 0, np.full(5, 3.0))
    shard.add_worker(1)
    shard.receive_push(0, 0, np.full(5, 9.0))
    assert shard.clock == 0
    shard.receive_push(1, 0, np.full(5, 6.0))
    assert shard.parameters.tolist() == [-6.0] * 5


def test_a_step_waits_again_for_all_workers_of_a_resumed_run():
    shard = first_of_step(3, 3)
    shard.remove_worker(2)
    shard.receive_push(0, 0, np.full(5, 3.0))
    resumed = loaded(shard, first_of_step(3, 3))
    for each, clock in ((shard, 1), (resumed, 0)):
        each.receive_push(1, 0, np.full(5, 9.0))
        assert each.clock == clock
    resumed.receive_push(2, 0, np.full(5, 9.0))
    assert resumed.clock == 1
    assert resumed.parameters.tolist() == [-7.0] * 5
