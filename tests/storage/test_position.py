"""Where a checkpoint was cut: attributes of a position, and tickets that are passed over."""

import h5py
import pytest

from mpidl.data import Portions
from mpidl.data.schedule import Schedule
from mpidl.storage.position import Position, ReplicaPosition, cut_off, cut_position

START = Position(0, 0, 0.0, 0, [])


@pytest.mark.parametrize("state", [None, {"iteration": 3, "direction": [0.5, 1e-300]}])
def test_a_position_is_what_its_attributes_say(state):
    replica = ReplicaPosition(
        batches=7,
        samples=50,
        unpushed=[(3, 1, 2), (5, 0, 4)],
        working=[(5, 4)],
        tickets=3,
        recent=[4, 6],
        portion=5,
        clock=2,
        fetched=[[7, 1, 0], [8, 2, 0]],
        counts={"steps": 7},
    )
    replicas = [replica, ReplicaPosition(batches=0, samples=0)]
    position = Position(9, 71, 71 / 3, 6, [(3, 1), (5, 0)], state, 1 / 3, replicas, [(4, 0)], (2, [(1, 1)]))
    assert Position.of(position.attributes()) == position
    assert Position.of(START.attributes()) == START


def test_a_position_is_what_attributes_in_a_file_say(tmp_path):
    position = Position(9, 71, 1.5, 6, [], None, 0.5, [ReplicaPosition(batches=1, samples=2)], [(4, 0)], (2, []))
    with h5py.File(tmp_path / "index.h5", "w") as file:
        file.attrs.update(position.attributes())
        assert Position.of(file.attrs) == position


def replicas(*parts):
    """Return the positions of replicas, each with its working and its recent or its number of tickets."""
    return [
        ReplicaPosition(batches=2, samples=20, working=working, recent=recent, tickets=len(recent))
        for working, recent in parts
    ]


def schedule(**options):
    return Schedule(Portions(100, 10, 20, seed=0), **{"epochs": 2} | options)


def test_tickets_that_nobody_has_taken_are_passed_over():
    position = cut_position(START, replicas(([(4, 1)], [3, 4]), ([], [6])), schedule(), taken=3, seconds=2.0)
    assert (position.next_portion, position.passed_over) == (7, [(5, 0)])
    assert position.unfinished == [(4, 1), (5, 0)]
    assert (position.step, position.samples, position.epoch, position.seconds) == (4, 40, 0.4, 2.0)
    assert position.beginning is None


def test_in_turn_the_tickets_of_a_slow_worker_are_passed_over():
    start = Position(3, 30, 0.3, 2, [(1, 1)])
    resumed = schedule(next_portion=2, unfinished=[(1, 1)])
    position = cut_position(start, replicas(([], [0, 0, 0]), ([], [0])), resumed, taken=None, seconds=2.0)
    # Worker 0 has taken the tickets 0, 2 and 4, worker 1 has taken 1: ticket 3 is portion 4.
    assert (position.next_portion, position.passed_over) == (6, [(4, 0)])
    assert position.beginning == (2, [(1, 1)])
    again = position.with_replicas(resumed, in_turn=True)
    assert (again.next_portion, again.unfinished, again.beginning) == (2, [(1, 1)], (2, [(1, 1)]))
    free = position.with_replicas(resumed, in_turn=False)
    assert (free.next_portion, free.unfinished, free.beginning) == (6, [(4, 0)], None)


def test_tickets_beyond_the_data_stand_for_nothing():
    position = cut_position(START, replicas(([(9, 1)], [9, 11]), ([], [10])), schedule(), taken=9, seconds=2.0)
    assert (position.next_portion, position.unfinished, position.passed_over) == (10, [(9, 1)], [])


def test_the_same_replicas_go_on_with_what_they_have_computed():
    position = cut_position(
        START,
        [ReplicaPosition(batches=3, samples=30, unpushed=[(0, 1, 2), (2, 0, 1)], working=[(2, 1)], recent=[2])],
        schedule(),
        taken=2,
        seconds=2.0,
    )
    assert (position.step, position.samples, position.unfinished) == (1, 10, [(0, 1), (2, 0)])
    again = position.with_replicas(schedule(), in_turn=False)
    assert (again.step, again.samples, again.epoch) == (3, 30, 0.3)
    assert (again.next_portion, again.unfinished) == (3, [])


# Where a replica is for which servers have made the mark behind its pushes.


@pytest.mark.parametrize(
    ("taken", "last", "working", "recent"),
    [
        ([], -1, [], []),
        ([0], -1, [(0, 0)], []),
        ([0, 2], 0, [(0, 1), (2, 0)], []),
        ([0, 2], 1, [(2, 0)], []),
        # Taken since the checkpoint was ordered: with a push before the mark, and without.
        ([0, 5], 10, [(5, 1)], [5]),
        ([0, 5, 6], 10, [(5, 1)], [5]),
        ([0, 5], 0, [(0, 1)], []),
    ],
)
def test_a_replica_that_made_no_mark(taken, last, working, recent):
    plan = schedule(epochs=4)
    assigned = [(ticket, plan.assignment(ticket)) for ticket in taken]
    found = cut_off(None, assigned, [], plan, last=last, known=4, clock=7)
    assert (found.working, found.recent, found.clock) == (working, recent, 7)
    # The others have done all before ticket 4.
    position = cut_position(START, [found], plan, taken=4, seconds=0.0)
    left = sum(2 - first for _, first in position.unfinished)
    assert position.step == 2 * position.next_portion - left == position.samples // 10


def test_a_replica_that_was_resumed_begins_with_what_it_had_not_pushed():
    plan = schedule(epochs=4, next_portion=3)
    before = ReplicaPosition(batches=3, samples=30, unpushed=[(1, 1, 2)], working=[(2, 1)])
    assert cut_off(before, [], [], plan, last=-1, known=0, clock=0).working == [(1, 1), (2, 1)]
    assert cut_off(before, [], [], plan, last=3, known=0, clock=0).working == [(2, 1)]


def test_parts_that_others_gave_back_count_as_taken_only_before_the_mark():
    plan = schedule(epochs=4)
    parts = [(-1, plan.part(4, 1)), (0, plan.part(0, 0)), (-2, plan.part(6, 1))]
    found = cut_off(None, parts, [-1, -2], plan, last=0, known=4, clock=0)
    assert (found.working, found.recent) == ([(0, 1)], [-1])


def test_a_run_that_was_resumed_counts_on():
    plan = schedule(epochs=4, next_portion=7)
    before = [ReplicaPosition(batches=0, samples=0, working=[(4, 1)]), ReplicaPosition(batches=0, samples=0)]
    start = Position(13, 130, 1.3, 7, [], replicas=before)
    own = ReplicaPosition(batches=3, samples=30, working=[(7, 1)], unpushed=[(7, 0, 1)])
    off = cut_off(before[0], [(1, plan.assignment(1))], [], plan, last=9, known=2, clock=0)
    found = cut_position(start, [off, own], plan, taken=2, seconds=0.0)
    assert off.working == [(8, 0)]
    assert (found.step, found.samples, found.unfinished) == (14, 140, [(7, 0), (8, 0)])
