"""What a supervisor decides: the instructions that it returns after scripted events, and what holds for any events."""

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.algorithms.coordinator_requests import Iteration
from mpidl.data.portions import Portions
from mpidl.data.schedule import Schedule
from mpidl.engines.totals import Totals
from mpidl.roles import supervision
from mpidl.roles.supervision import (
    Evaluated,
    Finish,
    Iterated,
    Log,
    Looked,
    Save,
    Saved,
    Signalled,
    Started,
    Stop,
    Supervisor,
    Trained,
    dropped,
)
from mpidl.shards.policies import PushHeader
from mpidl.storage.position import Position

SAMPLES, BATCH, PORTION = 100, 10, 20  # five portions of two batches in an epoch
START = Position(0, 0, 0.0, 0, [])
TEST, LAST_TEST = supervision.Test(), supervision.Test(final=True)
CHECKPOINT = "checkpoint"


def schedule(position=START, epochs=4):
    portions = Portions(SAMPLES, BATCH, PORTION, seed=0)
    return Schedule(portions, epochs, next_portion=position.next_portion, unfinished=position.unfinished)


def supervisor(position=START, epochs=4, **options):
    return Supervisor(schedule(position, epochs), position, **{"now": 0.0, "every": 10.0} | options)


def totals(now, batches):
    return Totals(now, samples=BATCH * batches, batches=batches)


def looked(now, batches, tickets=None, unfinished=()):
    """A look at a run whose portions taken are all used up, unless told otherwise."""
    return Looked(totals(now, batches), -(-batches // 2) if tickets is None else tickets, unfinished)


def trained(now, batches, tickets=None, unfinished=()):
    look = looked(now, batches, tickets, unfinished)
    return Trained(look.totals, look.tickets, look.unfinished)


def position(batches, next_portion, unfinished=(), state=None):
    samples = BATCH * batches
    return Position(batches, samples, samples / SAMPLES, next_portion, list(unfinished), state)


def iterated(now, number, samples, backups=0):
    """An iteration of Sandblaster that has accrued so many samples; workers computed twice as many."""
    counts = {"portions": 5, "backups": backups, "won": 0, "waiting": 0.0}
    iteration = Iteration(number, 0.5, 0.1, 1.0, 1, samples, **counts, state={"iteration": number})
    return Iterated(totals(now, 2 * samples // BATCH), iteration)


def script(supervisor, *steps):
    """Tell events in turn and compare the instructions after each."""
    for event, instructions in steps:
        assert supervisor.handle(event) == instructions, event


def saved(step):
    return Log(CHECKPOINT, {"step": step})


def test_a_run_from_beginning_to_end():
    script(
        supervisor(),
        (Started(), [Save(START)]),
        (Saved(1.0), [saved(0)]),
        (looked(10.9, 5), []),
        (looked(11.0, 6), [Save(position(6, 3))]),
        (looked(30.0, 8), []),  # still being written
        (Saved(31.0), [saved(6)]),
        (Evaluated(25.0, 0.5), []),
        (looked(40.9, 12), []),
        (trained(41.5, 40), [Save(position(40, 20))]),
        (Saved(42.0), [saved(40), LAST_TEST]),
        (Evaluated(41.5, 0.9), [Finish(False, None)]),
    )


def test_a_portion_in_work_is_resumed_from_its_next_batch():
    (save,) = supervisor().handle(looked(10.0, 5, tickets=4, unfinished=[(3, 1), (2, 0)]))
    assert save == Save(position(5, 4, [(2, 0), (3, 1)]))


def test_a_resumed_run_goes_on_from_its_checkpoint():
    start = position(7, 5, [(2, 1), (4, 0)])
    script(
        supervisor(start, resumed=True),
        (Started(), []),
        (looked(10.0, 0, tickets=0), []),  # a checkpoint of this step exists
        (looked(19.9, 1, tickets=1), []),  # and the next is due as long after it as any
        (looked(20.0, 1, tickets=1), [Save(position(8, 5, [(4, 0)]))]),
        (Saved(20.0), [saved(8)]),
        (looked(30.0, 4, tickets=3, unfinished=[(5, 1)]), [Save(position(11, 6, [(5, 1)]))]),
    )


def test_a_resumed_run_that_is_complete_saves_nothing():
    start = position(40, 20)
    script(
        supervisor(start, resumed=True),
        (Started(), []),
        (trained(1.0, 0), [LAST_TEST]),
        (Evaluated(0.0, 0.9), [Finish(False, None)]),
    )


def test_a_signal_stops_the_run_once_and_there_is_no_final_evaluation():
    script(
        supervisor(),
        (Started(), [Save(START)]),
        (Signalled(), [Stop(), Log("interrupted")]),  # while a checkpoint is being written
        (Signalled(), []),
        (looked(20.0, 3), []),
        (Saved(21.0), [saved(0)]),
        (trained(22.0, 3, tickets=2, unfinished=[(1, 1)]), [Save(position(3, 2, [(1, 1)]))]),
        (Signalled(), []),
        (Saved(23.0), [saved(3), Finish(True, None)]),
        (Signalled(), []),
    )


def test_replicas_that_end_while_a_checkpoint_is_being_written():
    first = position(6, 3)
    script(
        supervisor(resumed=True),
        (looked(10.0, 6), [Save(first)]),
        (trained(11.0, 40), []),
        (Saved(12.0), [saved(6), Save(position(40, 20))]),
        (Saved(13.0), [saved(40), LAST_TEST]),
    )
    script(
        supervisor(resumed=True),
        (looked(10.0, 6), [Save(first)]),
        (trained(11.0, 6), []),
        (Saved(12.0), [saved(6), LAST_TEST]),  # it was the last one
    )


@pytest.mark.parametrize(("when", "interrupted"), [("saving", True), ("testing", True), ("finished", False)])
def test_a_signal_after_training(when, interrupted):
    run = supervisor(resumed=True)
    assert run.handle(trained(1.0, 40)) == [Save(position(40, 20))]
    signalled = [Log("interrupted")]
    if when == "saving":
        assert run.handle(Signalled()) == signalled
        assert run.handle(Saved(2.0)) == [saved(40), Finish(True, None)]
        return
    assert run.handle(Saved(2.0)) == [saved(40), LAST_TEST]
    if when == "testing":
        assert run.handle(Signalled()) == signalled
    assert run.handle(Evaluated(1.0, 0.9)) == [Finish(interrupted, None)]
    assert run.handle(Signalled()) == []


def test_the_target_accuracy_stops_the_run_once():
    script(
        supervisor(resumed=True, target_accuracy=0.8),
        (Evaluated(3.0, math.nan), []),
        (Evaluated(4.0, 0.79), []),
        (looked(10.0, 10), [Save(position(10, 5))]),
        (Evaluated(9.0, 0.8), [Stop()]),  # while a checkpoint is being written
        (Evaluated(9.5, 0.9), []),
        (Saved(11.0), [saved(10)]),
        (Signalled(), [Log("interrupted")]),
        (trained(12.0, 11, tickets=6), [Save(position(11, 6))]),
        (Saved(13.0), [saved(11), Finish(True, 9.0)]),
    )


def test_the_final_evaluation_may_reach_the_target():
    script(
        supervisor(resumed=True, target_accuracy=0.8),
        (trained(12.0, 0), [LAST_TEST]),
        (Evaluated(11.0, 0.8), [Finish(False, 11.0)]),
    )


@pytest.mark.parametrize(
    ("tickets", "next_portion", "unfinished"),
    [
        ((0, 0), 0, []),
        ((3, 3), 6, []),
        ((3, 1), 5, [(1, 1), (3, 0)]),  # worker 1 has not taken its ticket 3
        ((0, 2), 4, [(0, 0), (1, 1), (2, 0)]),
    ],
)
def test_a_deterministic_run_gives_again_the_portions_that_a_slow_worker_missed(tickets, next_portion, unfinished):
    event = looked(10.0, 7, tickets, unfinished=[(1, 1)] if tickets[1] in (1, 2) else [])
    assert supervisor().handle(event) == [Save(position(7, next_portion, unfinished))]


def test_missed_tickets_beyond_the_data_stand_for_nothing():
    event = looked(10.0, 7, (1, 14))
    (save,) = supervisor(epochs=2).handle(event)
    assert save.position.next_portion == 10
    assert save.position.unfinished == [(2, 0), (4, 0), (6, 0), (8, 0)]


def test_a_coordinator_saves_and_tests_after_iterations_only():
    def at(batches, samples, number):
        return Position(batches, samples, samples / SAMPLES, 0, [], {"iteration": number})

    script(
        supervisor(epochs=2, coordinated=True),
        (Started(), [Save(START)]),
        (Saved(1.0), [saved(0)]),
        (looked(20.0, 5), []),
        (iterated(20.0, 1, 60), [Save(at(12, 60, 1))]),
        (iterated(40.0, 2, 120, backups=3), [Log("backups", {"iteration": 2, "backups": 3, "won": 0}), TEST]),
        (Evaluated(39.0, 0.5), []),
        (Saved(41.0), [saved(12)]),
        (iterated(51.0, 3, 180), [Save(at(36, 180, 3))]),
        (Saved(52.0), [saved(36)]),
        (iterated(53.0, 4, 200), [Stop()]),  # two epochs: no test before the final one
        (trained(54.0, 40), [Save(at(40, 200, 4))]),
        (Saved(55.0), [saved(40), LAST_TEST]),
        (Evaluated(54.0, 0.5), [Finish(False, None)]),
    )


def test_a_resumed_coordinator_counts_the_epochs_before():
    start = Position(30, 150, 1.5, 0, [], {"iteration": 3})
    script(
        supervisor(start, epochs=3, resumed=True, coordinated=True),
        (iterated(1.0, 3, 20), []),
        (iterated(2.0, 4, 60), [TEST]),
        (iterated(3.0, 5, 150), [Stop()]),
        (trained(4.0, 30), [Save(Position(60, 300, 3.0, 0, [], {"iteration": 5}))]),
    )


def test_an_interrupted_coordinator_completes_its_iteration():
    script(
        supervisor(resumed=True, coordinated=True),
        (Signalled(), [Log("interrupted")]),
        (iterated(1.0, 1, 110), [Stop()]),
        (trained(2.0, 22), [Save(Position(22, 110, 1.1, 0, [], {"iteration": 1}))]),
        (Saved(3.0), [saved(22), Finish(True, None)]),
    )


def test_a_coordinator_that_reaches_the_target_stops():
    script(
        supervisor(coordinated=True, resumed=True, target_accuracy=0.8),
        (iterated(1.0, 1, 100), [TEST]),
        (Evaluated(1.0, 0.8), [Stop()]),
    )


@pytest.mark.parametrize(("portions", "noted"), [((3, 5), [3, 5]), ((4, 4), [4])])
def test_the_record_of_a_dropped_push(portions, noted):
    push = PushHeader(worker=2, ordinal=7, fetched=1, staleness=6, portions=portions)
    assert dropped(push) == Log("drop", {"worker": 2, "portions": noted, "staleness": 6})


EVENTS = st.sampled_from(["look", "iterate", "evaluate", "signal", "saved"])


@given(
    st.lists(st.tuples(EVENTS, st.integers(0, 8), st.floats(0, 20), st.floats(0, 1)), max_size=40),
    st.booleans(),
    st.booleans(),
    st.integers(0, 3),
)
def test_whatever_happens(happenings, coordinated, resumed, late):
    """One checkpoint at a time, each further than the last; `Stop` and `Finish` once; nothing after `Finish`."""
    run = supervisor(coordinated=coordinated, resumed=resumed, target_accuracy=0.9)
    told, writing, now, batches, accrued = [], None, 0.0, 0, 0
    saved_positions = [START] if resumed else []

    def tell(event):
        nonlocal writing
        instructions = run.handle(event)
        for instruction in instructions:
            assert Finish not in map(type, told)
            told.append(instruction)
            if isinstance(instruction, Save):
                assert writing is None
                assert all(before.step < instruction.position.step for before in saved_positions)
                assert all(before.samples <= instruction.position.samples for before in saved_positions)
                saved_positions.append(instruction.position)
                writing = instruction.position
        return instructions

    def finish_writing():
        nonlocal writing
        done, writing = writing, None
        assert tell(Saved(now))[0] == saved(done.step)

    tell(Started())
    for kind, count, seconds, accuracy in happenings:
        now += seconds
        if kind == "saved" and writing is not None:
            finish_writing()
        elif kind == "look":
            batches += 0 if coordinated else count
            tell(looked(now, batches))
        elif kind == "iterate" and coordinated:
            batches, accrued = batches + count, accrued + BATCH * count
            tell(Iterated(totals(now, batches), iterated(now, 1, accrued).iteration))
        elif kind == "evaluate":
            tell(Evaluated(now, accuracy))
        elif kind == "signal":
            tell(Signalled())
    interrupted = Log("interrupted") in told
    tell(trained(now, batches))
    while writing is not None:
        if late == 1:
            interrupted |= bool(tell(Signalled()))
        finish_writing()
    assert (LAST_TEST in told) != interrupted
    if not interrupted:
        tell(Evaluated(now, 0.95))
    last = told[-1]
    assert isinstance(last, Finish)
    assert last.interrupted == interrupted
    assert saved_positions[-1].step == batches
    assert sum(isinstance(each, Stop) for each in told) <= 1
    assert coordinated or TEST not in told
    for event in (Signalled(), Evaluated(now, 1.0), looked(now + 99, batches + 1), trained(now, batches)):
        assert run.handle(event) == []


def test_it_needs_neither_mpi_nor_hdf5():
    check = "import sys, mpidl.roles.supervision; sys.exit(any(name in sys.modules for name in ('mpi4py', 'h5py')))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
