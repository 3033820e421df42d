"""Where a replica is for which servers have made the mark behind its pushes."""

import pytest

from mpidl.data.schedule import Portions, Schedule
from mpidl.storage.position import Position, ReplicaPosition, cut_off, cut_position


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
    schedule = Schedule(Portions(100, 10, 20, seed=0), epochs=4)
    assigned = [(ticket, schedule.assignment(ticket)) for ticket in taken]
    found = cut_off(None, assigned, [], schedule, last=last, known=4, clock=7)
    assert (found.working, found.recent, found.clock) == (working, recent, 7)
    # The others have done all before ticket 4.
    position = cut_position(Position(0, 0, 0.0, 0, []), [found], schedule, taken=4, seconds=0.0)
    left = sum(2 - first for _, first in position.unfinished)
    assert position.step == 2 * position.next_portion - left == position.samples // 10


def test_a_replica_that_was_resumed_begins_with_what_it_had_not_pushed():
    schedule = Schedule(Portions(100, 10, 20, seed=0), epochs=4, next_portion=3)
    before = ReplicaPosition(batches=3, samples=30, unpushed=[(1, 1, 2)], working=[(2, 1)])
    assert cut_off(before, [], [], schedule, last=-1, known=0, clock=0).working == [(1, 1), (2, 1)]
    assert cut_off(before, [], [], schedule, last=3, known=0, clock=0).working == [(2, 1)]


def test_parts_that_others_gave_back_count_as_taken_only_before_the_mark():
    schedule = Schedule(Portions(100, 10, 20, seed=0), epochs=4)
    parts = [(-1, schedule.part(4, 1)), (0, schedule.part(0, 0)), (-2, schedule.part(6, 1))]
    found = cut_off(None, parts, [-1, -2], schedule, last=0, known=4, clock=0)
    assert (found.working, found.recent) == ([(0, 1)], [-1])


def test_a_run_that_was_resumed_counts_on():
    schedule = Schedule(Portions(100, 10, 20, seed=0), epochs=4, next_portion=7)
    replicas = [ReplicaPosition(batches=0, samples=0, working=[(4, 1)]), ReplicaPosition(batches=0, samples=0)]
    start = Position(13, 130, 1.3, 7, [], replicas=replicas)
    own = ReplicaPosition(batches=3, samples=30, working=[(7, 1)], unpushed=[(7, 0, 1)])
    off = cut_off(replicas[0], [(1, schedule.assignment(1))], [], schedule, last=9, known=2, clock=0)
    found = cut_position(start, [off, own], schedule, taken=2, seconds=0.0)
    assert off.working == [(8, 0)]
    assert (found.step, found.samples, found.unfinished) == (14, 140, [(7, 0), (8, 0)])
