"""What a supervisor decides: the instructions that it returns after scripted events."""

import math
import subprocess
import sys

import pytest
from supervised import (
    CHECKPOINT,
    INTERRUPTED,
    LAST_SAVE,
    LAST_TEST,
    REACHED,
    SAVE,
    STOP_REACHED,
    aiming_at,
    evaluated,
    looked,
    saved,
    script,
    supervisor,
    trained,
)

from mpidl.roles.events import Finish, Log, Save, Saved, Signalled, Started, TakenOver, dropped
from mpidl.shards.policies import PushHeader
from mpidl.storage.position import Position


def test_a_run_from_beginning_to_end():
    script(
        supervisor(),
        (Started(), [SAVE]),
        (Saved(1.0, 0), [saved(0)]),
        (looked(10.9, 5), []),
        (looked(11.0, 6), [SAVE]),
        (looked(30.0, 8), []),  # still being written
        (Saved(31.0, 7), [saved(7)]),  # pushed up to the marks, a little later
        (evaluated(25.0, 0.5), []),
        (looked(40.9, 12), []),
        (looked(41.0, 12), [SAVE]),
        (Saved(41.2, 12), [saved(12)]),
        (trained(41.5, 40), [SAVE]),
        (Saved(42.0, 40), [saved(40), LAST_TEST]),
        (evaluated(41.5, 0.9), [Finish(False, None)]),
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


def test_interim_checkpoints_come_between_those_on_disk():
    interim = Save(interim=True)
    script(
        supervisor(interim=3.0),
        (Started(), [SAVE]),
        (Saved(1.0, 0), [saved(0)]),
        (looked(3.9, 3), []),
        (looked(4.0, 3), [interim]),
        (looked(8.0, 5), []),  # still being written
        (Saved(8.5, 4), [Log(CHECKPOINT, {"step": 4, "mirror": True})]),
        (looked(11.5, 5), [SAVE]),
        (Saved(12.0, 5), [saved(5)]),
        (looked(15.0, 5), []),  # nothing is new
        (looked(15.1, 6), [interim]),
        (Saved(15.2, 6, complete=False), []),
        (looked(18.2, 7), [interim]),
        (Signalled(), [LAST_SAVE, INTERRUPTED]),  # which gives it up
        (Saved(18.5, 8), [saved(8)]),
    )


def test_a_coordinator_that_takes_over_orders_an_interim_checkpoint_anew():
    before, after = supervisor(interim=3.0, resumed=True), supervisor(interim=3.0, resumed=True)
    script(before, (looked(3.0, 3), [Save(interim=True)]))
    after.load(before.state())
    script(after, (TakenOver(), [Save(interim=True)]), (Saved(4.0, 4), [Log(CHECKPOINT, {"step": 4, "mirror": True})]))


def test_the_last_checkpoint_follows_the_last_push():
    """Even if no batch has been computed since the one before: replicas push at their end what they have accrued."""
    script(
        supervisor(resumed=True),
        (looked(10.0, 40), [SAVE]),
        (Saved(10.1, 38), [saved(38)]),
        (trained(11.0, 40), [SAVE]),
        (Saved(12.0, 40), [saved(40), LAST_TEST]),
        (evaluated(11.0, 0.9), [Finish(False, None)]),
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
    assert run.handle(evaluated(1.0, 0.9)) == [Finish(when == "testing", None)]
    assert run.handle(Signalled()) == []


def test_the_target_accuracy_stops_the_run_once():
    script(
        supervisor(resumed=True, goal=aiming_at(0.8)),
        (evaluated(3.0, math.nan), []),
        (evaluated(4.0, 0.79), []),
        (looked(10.0, 10), [SAVE]),
        (evaluated(9.0, 0.8), STOP_REACHED),  # while a checkpoint is being written
        (evaluated(9.5, 0.9), []),
        (Saved(11.0, 10), [saved(10)]),
        (trained(12.0, 11), [SAVE]),
        (Saved(13.0, 11), [saved(11), LAST_TEST]),
        (evaluated(12.0, 0.7), [Finish(False, 9.0, REACHED)]),
    )


def test_a_signal_after_the_target_was_reached():
    script(
        supervisor(resumed=True, goal=aiming_at(0.8)),
        (evaluated(9.0, 0.8), STOP_REACHED),
        (Signalled(), [LAST_SAVE, INTERRUPTED]),
        (trained(12.0, 11), []),
        (Saved(13.0, 11), [saved(11), Finish(True, 9.0, REACHED)]),
    )


def test_the_final_evaluation_may_reach_the_target():
    script(
        supervisor(resumed=True, goal=aiming_at(0.8)),
        (trained(12.0, 4), [SAVE]),
        (Saved(12.1, 4), [saved(4), LAST_TEST]),
        (evaluated(11.0, 0.8), [Finish(False, 11.0)]),
    )


def test_the_time_to_the_target_is_that_of_the_whole_run():
    script(
        supervisor(Position(7, 70, 0.7, 5, [], seconds=100.0), resumed=True, goal=aiming_at(0.8)),
        (evaluated(9.0, 0.8), STOP_REACHED),
        (trained(12.0, 4), [SAVE]),
        (Saved(12.1, 11), [saved(11), LAST_TEST]),
        (evaluated(11.0, 0.8), [Finish(False, 109.0, REACHED)]),
    )


@pytest.mark.parametrize(("batches", "noted"), [((12, 23), [3, 5]), ((17, 19), [4])])
def test_the_record_of_a_dropped_push(batches, noted):
    push = PushHeader(worker=2, ordinal=7, fetched=1, staleness=6, batches=batches)
    assert dropped(push, lambda batch: batch // 4) == Log("drop", {"worker": 2, "portions": noted, "staleness": 6})


def test_it_needs_neither_mpi_nor_hdf5():
    check = "import sys, mpidl.roles.supervision; sys.exit(any(name in sys.modules for name in ('mpi4py', 'h5py')))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
