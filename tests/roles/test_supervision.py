"""What a supervisor decides: the instructions that it returns after scripted events, and what holds for any events."""

import math
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.algorithms.coordinator_requests import Iteration
from mpidl.data.portions import Portions
from mpidl.data.schedule import Schedule
from mpidl.engines.totals import Totals
from mpidl.errors import NOT_FINITE
from mpidl.roles import supervision
from mpidl.roles.supervision import (
    Diverged,
    Evaluated,
    Fail,
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

SAMPLES, BATCH = 100, 10
START = Position(0, 0, 0.0, 0, [])
TEST, LAST_TEST = supervision.Test(), supervision.Test(final=True)
CHECKPOINT, INTERRUPTED = "checkpoint", Log("interrupted")
SAVE, LAST_SAVE = Save(), Save(last=True)


def supervisor(position=START, epochs=4, **options):
    schedule = Schedule(Portions(SAMPLES, BATCH, 2 * BATCH, seed=0), epochs)
    return Supervisor(schedule, position, **{"now": 0.0, "every": 10.0} | options)


def totals(now, batches):
    return Totals(now, samples=BATCH * batches, batches=batches)


def looked(now, batches):
    return Looked(totals(now, batches))


def trained(now, batches):
    return Trained(totals(now, batches))


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
        (Started(), [SAVE]),
        (Saved(1.0, 0), [saved(0)]),
        (looked(10.9, 5), []),
        (looked(11.0, 6), [SAVE]),
        (looked(30.0, 8), []),  # still being written
        (Saved(31.0, 7), [saved(7)]),  # pushed up to the marks, a little later
        (Evaluated(25.0, 0.5), []),
        (looked(40.9, 12), []),
        (looked(41.0, 12), [SAVE]),
        (Saved(41.2, 12), [saved(12)]),
        (trained(41.5, 40), [SAVE]),
        (Saved(42.0, 40), [saved(40), LAST_TEST]),
        (Evaluated(41.5, 0.9), [Finish(False, None)]),
    )


def test_nothing_is_ordered_while_no_batch_is_computed():
    script(
        supervisor(),
        (Started(), [SAVE]),
        (Saved(1.0, 0), [saved(0)]),
        (looked(20.0, 0), []),
        (looked(21.0, 1), [SAVE]),
        (Saved(22.0, 1), [saved(1)]),
        (looked(40.0, 1), []),
        (looked(41.0, 2), [SAVE]),
    )


def test_a_checkpoint_is_due_as_long_after_a_resume_as_after_any_other():
    script(
        supervisor(Position(7, 70, 0.7, 5, [(2, 1), (4, 0)]), resumed=True, now=100.0),
        (Started(), []),
        (looked(109.9, 1), []),
        (looked(110.0, 0), []),  # a checkpoint of this step exists
        (looked(110.1, 1), [SAVE]),
        (Saved(110.2, 8), [saved(8)]),
        (looked(120.1, 4), []),
        (looked(120.2, 4), [SAVE]),
    )


def test_the_last_checkpoint_follows_the_last_push():
    """Even if no batch has been computed since the one before: replicas push at their end what they have accrued."""
    script(
        supervisor(resumed=True),
        (looked(10.0, 40), [SAVE]),
        (Saved(10.1, 38), [saved(38)]),
        (trained(11.0, 40), [SAVE]),
        (Saved(12.0, 40), [saved(40), LAST_TEST]),
        (Evaluated(11.0, 0.9), [Finish(False, None)]),
    )


def test_replicas_that_end_while_a_checkpoint_is_being_written():
    script(
        supervisor(resumed=True),
        (looked(10.0, 6), [SAVE]),
        (trained(11.0, 40), []),
        (Saved(12.0, 6), [saved(6), SAVE]),
        (Saved(13.0, 40), [saved(40), LAST_TEST]),
    )


def test_a_signal_orders_the_last_checkpoint_at_once():
    script(
        supervisor(),
        (Started(), [SAVE]),
        (Saved(1.0, 0), [saved(0)]),
        (Signalled(), [LAST_SAVE, INTERRUPTED]),
        (Signalled(), []),
        (looked(30.0, 3), []),
        (trained(31.0, 3), []),
        (Signalled(), []),
        (Saved(32.0, 2), [saved(2), Finish(True, None)]),
        (Signalled(), []),
    )


def test_a_signal_gives_up_a_checkpoint_that_is_being_written():
    script(
        supervisor(resumed=True),
        (looked(10.0, 6), [SAVE]),
        (Signalled(), [LAST_SAVE, INTERRUPTED]),
        (Saved(12.0, 8), [saved(8)]),  # before all replicas have ended
        (looked(40.0, 9), []),
        (trained(41.0, 9), [Finish(True, None)]),
    )


@pytest.mark.parametrize("when", ["writing", "saving", "testing", "finished"])
def test_a_signal_after_training(when):
    run = supervisor(resumed=True)
    if when == "writing":
        script(
            run,
            (looked(10.0, 6), [SAVE]),
            (trained(11.0, 40), []),
            (Signalled(), [LAST_SAVE, INTERRUPTED]),
            (Saved(12.0, 40), [saved(40), Finish(True, None)]),
        )
        return
    assert run.handle(trained(1.0, 40)) == [SAVE]
    if when == "saving":
        assert run.handle(Signalled()) == [INTERRUPTED]
        assert run.handle(Saved(2.0, 40)) == [saved(40), Finish(True, None)]
        return
    assert run.handle(Saved(2.0, 40)) == [saved(40), LAST_TEST]
    if when == "testing":
        assert run.handle(Signalled()) == [INTERRUPTED]
    assert run.handle(Evaluated(1.0, 0.9)) == [Finish(when == "testing", None)]
    assert run.handle(Signalled()) == []


def test_the_target_accuracy_stops_the_run_once():
    script(
        supervisor(resumed=True, target_accuracy=0.8),
        (Evaluated(3.0, math.nan), []),
        (Evaluated(4.0, 0.79), []),
        (looked(10.0, 10), [SAVE]),
        (Evaluated(9.0, 0.8), [Stop()]),  # while a checkpoint is being written
        (Evaluated(9.5, 0.9), []),
        (Saved(11.0, 10), [saved(10)]),
        (trained(12.0, 11), [SAVE]),
        (Saved(13.0, 11), [saved(11), LAST_TEST]),
        (Evaluated(12.0, 0.7), [Finish(False, 9.0)]),
    )


def test_a_signal_after_the_target_was_reached():
    script(
        supervisor(resumed=True, target_accuracy=0.8),
        (Evaluated(9.0, 0.8), [Stop()]),
        (Signalled(), [LAST_SAVE, INTERRUPTED]),
        (trained(12.0, 11), []),
        (Saved(13.0, 11), [saved(11), Finish(True, 9.0)]),
    )


def test_the_final_evaluation_may_reach_the_target():
    script(
        supervisor(resumed=True, target_accuracy=0.8),
        (trained(12.0, 4), [SAVE]),
        (Saved(12.1, 4), [saved(4), LAST_TEST]),
        (Evaluated(11.0, 0.8), [Finish(False, 11.0)]),
    )


def test_the_time_to_the_target_is_that_of_the_whole_run():
    script(
        supervisor(Position(7, 70, 0.7, 5, [], seconds=100.0), resumed=True, target_accuracy=0.8),
        (Evaluated(9.0, 0.8), [Stop()]),
        (trained(12.0, 4), [SAVE]),
        (Saved(12.1, 11), [saved(11), LAST_TEST]),
        (Evaluated(11.0, 0.8), [Finish(False, 109.0)]),
    )


# Algorithms with a coordinator.


def at(batches, samples, number):
    return Save(position=Position(batches, samples, samples / SAMPLES, 0, [], {"iteration": number}))


def test_a_coordinator_saves_and_tests_after_iterations_only():
    script(
        supervisor(epochs=2, coordinated=True),
        (Started(), [Save(position=START)]),
        (Saved(1.0, 0), [saved(0)]),
        (looked(20.0, 5), []),
        (iterated(20.0, 1, 60), [at(12, 60, 1)]),
        (iterated(40.0, 2, 120, backups=3), [Log("backups", {"iteration": 2, "backups": 3, "won": 0}), TEST]),
        (Evaluated(39.0, 0.5), []),
        (Saved(41.0, 12), [saved(12)]),
        (iterated(51.0, 3, 180), [at(36, 180, 3)]),
        (Saved(52.0, 36), [saved(36)]),
        (iterated(53.0, 4, 200), [Stop()]),  # two epochs: no test before the final one
        (trained(54.0, 40), [at(40, 200, 4)]),
        (Saved(55.0, 40), [saved(40), LAST_TEST]),
        (Evaluated(54.0, 0.5), [Finish(False, None)]),
    )


def test_a_resumed_coordinator_counts_the_epochs_and_the_seconds_before():
    start = Position(30, 150, 1.5, 0, [], {"iteration": 3}, 7.0)
    (save,) = supervisor(start, coordinated=True).handle(Started())
    assert save == Save(position=start)
    end = Totals(9.0, samples=300, batches=30, first_fetch=4.0)
    script(
        supervisor(start, epochs=3, resumed=True, coordinated=True),
        (iterated(1.0, 3, 20), []),
        (iterated(2.0, 4, 60), [TEST]),
        (iterated(3.0, 5, 150), [Stop()]),
        (Trained(end), [Save(position=Position(60, 300, 3.0, 0, [], {"iteration": 5}, 7.0 + end.seconds))]),
    )
    assert end.seconds > 0


def test_an_interrupted_coordinator_completes_its_iteration():
    script(
        supervisor(resumed=True, coordinated=True),
        (Signalled(), [INTERRUPTED]),
        (iterated(1.0, 1, 110), [Stop()]),
        (trained(2.0, 22), [at(22, 110, 1)]),
        (Saved(3.0, 22), [saved(22), Finish(True, None)]),
    )


def test_an_interrupted_coordinator_lets_a_checkpoint_be_written():
    script(
        supervisor(resumed=True, coordinated=True),
        (iterated(10.0, 1, 60), [at(12, 60, 1)]),
        (Signalled(), [INTERRUPTED]),
        (iterated(11.0, 2, 90), [Stop()]),
        (trained(12.0, 18), []),
        (Saved(13.0, 12), [saved(12), at(18, 90, 2)]),
        (Saved(14.0, 18), [saved(18), Finish(True, None)]),
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


EVENTS = st.sampled_from(["look", "iterate", "evaluate", "signal", "saved", "saved"])
EVERY, TARGET = 10.0, 0.9


class Watch:
    """Tells a supervisor events, and holds what it answers against what is true of any run."""

    def __init__(self, coordinated, resumed):
        self._run = supervisor(coordinated=coordinated, resumed=resumed, every=EVERY, target_accuracy=TARGET)
        self._coordinated = coordinated
        self.now, self.batches, self._ordered = 0.0, 0, 0
        self.interrupted = self.trained = self.writing = False
        self.last_ordered, self._saved_at, self._step, self._samples = False, 0.0, -1, -1
        self.told = []

    def tell(self, event):
        self.interrupted |= isinstance(event, Signalled)
        self.trained |= isinstance(event, Trained)
        instructions = self._run.handle(event)
        for instruction in instructions:
            assert Finish not in map(type, self.told)
            self.told.append(instruction)
            if isinstance(instruction, Save):
                self._check(instruction, event)
        return instructions

    def _check(self, save, event):
        assert not self.last_ordered, "nothing is ordered after the last checkpoint"
        if save.last:
            assert isinstance(event, Signalled)
            assert not self._coordinated
        else:
            assert not self.writing
        if isinstance(event, Looked | Iterated) and not self.trained:
            assert self.batches > self._ordered
            assert self.now - self._saved_at >= EVERY
        assert (save.position is not None) == self._coordinated
        if save.position is not None:
            assert save.position.step >= self._step
            assert save.position.samples >= self._samples
            self._step, self._samples = save.position.step, save.position.samples
        self.last_ordered = save.last or self.trained
        self._ordered, self._saved_at, self.writing = self.batches, self.now, True

    def write(self):
        self.writing, self._saved_at = False, self.now
        assert self.tell(Saved(self.now, self.batches))[0] == saved(self.batches)


@given(
    st.lists(st.tuples(EVENTS, st.integers(0, 8), st.floats(0, 20), st.floats(0, 1)), max_size=40),
    st.booleans(),
    st.booleans(),
    st.integers(0, 3),
)
def test_whatever_happens(happenings, coordinated, resumed, late):
    """What `Watch` checks; one last checkpoint; `Stop` at most and `Finish` just once; nothing after `Finish`."""
    watch, accrued, reached = Watch(coordinated, resumed), 0, False
    first = watch.tell(Started())
    assert len(first) == (not resumed)
    for kind, count, seconds, accuracy in happenings:
        watch.now += seconds
        if kind == "saved" and watch.writing:
            watch.write()
        elif kind == "look":
            watch.batches += 0 if coordinated else count
            due = not watch.interrupted and not watch.writing
            told = watch.tell(looked(watch.now, watch.batches))
            assert due or not told
        elif kind == "iterate" and coordinated:
            watch.batches, accrued = watch.batches + count, accrued + BATCH * count
            iteration = iterated(watch.now, 1, accrued).iteration
            watch.tell(Iterated(totals(watch.now, watch.batches), iteration))
            assert not watch.interrupted or Stop() in watch.told
        elif kind == "evaluate":
            reached |= accuracy >= TARGET
            watch.tell(Evaluated(watch.now, accuracy))
            assert not reached or Stop() in watch.told
        elif kind == "signal":
            watch.tell(Signalled())
    watch.tell(trained(watch.now, watch.batches))
    while watch.writing:
        if late == 1:
            watch.tell(Signalled())
        watch.write()
    assert (LAST_TEST in watch.told) != watch.interrupted
    if not watch.interrupted:
        watch.tell(Evaluated(watch.now, 0.95))
    told = watch.told
    last = told[-1]
    assert isinstance(last, Finish)
    assert last.interrupted == watch.interrupted
    assert (last.seconds_to_target is not None) == (reached or not watch.interrupted)
    assert sum(isinstance(each, Stop) for each in told) <= 1
    assert told.count(INTERRUPTED) == watch.interrupted
    assert coordinated or TEST not in told
    assert watch.last_ordered
    for event in (Signalled(), Evaluated(watch.now, 1.0), looked(watch.now + 99, 99), trained(watch.now, 99)):
        assert watch.tell(event) == []


def test_it_needs_neither_mpi_nor_hdf5():
    check = "import sys, mpidl.roles.supervision; sys.exit(any(name in sys.modules for name in ('mpi4py', 'h5py')))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


NAN = math.nan
DIVERGED = [
    (Diverged(3, 17, math.inf), Fail(f"the loss is inf in portion 17: {NOT_FINITE}", 3)),
    (Evaluated(1.0, 0.1, NAN), Fail(f"the test loss is nan: {NOT_FINITE}")),
]


@pytest.mark.parametrize(("event", "failure"), DIVERGED)
def test_a_loss_that_is_not_finite_ends_the_run_once(event, failure):
    script(
        supervisor(resumed=True),
        (looked(10.0, 6), [SAVE]),
        (event, [failure]),
        (event, []),
        (Saved(12.0, 6), []),
        (Signalled(), []),
        (trained(41.0, 9), []),
    )


def test_an_objective_that_is_not_finite_ends_the_run():
    event = iterated(1.0, 4, 60)
    broken = Iterated(event.totals, replace(event.iteration, objective=NAN))
    script(
        supervisor(resumed=True, coordinated=True),
        (iterated(1.0, 3, 30), []),
        (broken, [Fail(f"the objective is nan after iteration 4: {NOT_FINITE}")]),
    )


@pytest.mark.parametrize("event", [event for event, _ in DIVERGED])
def test_a_run_that_may_go_on_does(event):
    script(
        supervisor(resumed=True, terminate_on_nan=False),
        (event, []),
        (trained(1.0, 40), [SAVE]),
        (Saved(2.0, 40), [saved(40), LAST_TEST]),
        (Evaluated(1.0, NAN, NAN), [Finish(False, None)]),
    )
