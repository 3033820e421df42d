"""What a supervisor decides: the instructions that it returns after scripted events."""

import math
import subprocess
import sys

import pytest
from msgspec.structs import replace
from supervised import (
    CHECKPOINT,
    INTERRUPTED,
    LAST_SAVE,
    LAST_TEST,
    REACHED,
    SAMPLES,
    SAVE,
    START,
    STOP_REACHED,
    TEST,
    aiming_at,
    evaluated,
    iterated,
    looked,
    saved,
    script,
    supervisor,
    trained,
)

from mpidl.engines.totals import Totals
from mpidl.errors import NOT_FINITE
from mpidl.roles.events import (
    CheckpointEnded,
    Diverged,
    Fail,
    Finish,
    Iterated,
    Log,
    Save,
    Signalled,
    Started,
    Stop,
    TakenOver,
    TrainingEnded,
    dropped,
)
from mpidl.roles.supervision import NO_OBJECTIVE
from mpidl.shards.policies import PushHeader
from mpidl.storage.position import Position


def at(batches, samples, number):
    return Save(position=Position(batches, samples, samples / SAMPLES, 0, [], {"iteration": number}))


NAN = math.nan

DIVERGED = [
    (Diverged(3, 17, math.inf), Fail(f"the loss is inf in portion 17: {NOT_FINITE}", 3)),
    (evaluated(1.0, 0.1, NAN), Fail(f"the test loss is nan: {NOT_FINITE}")),
]


#: The options of a supervisor, then events and the instructions after each.
SCRIPTS = {
    "a run from beginning to end": (
        {},
        (Started(), [SAVE]),
        (CheckpointEnded(1.0, 0), [saved(0)]),
        (looked(10.9, 5), []),
        (looked(11.0, 6), [SAVE]),
        (looked(30.0, 8), []),  # still being written
        (CheckpointEnded(31.0, 7), [saved(7)]),  # pushed up to the marks, a little later
        (evaluated(25.0, 0.5), []),
        (looked(40.9, 12), []),
        (looked(41.0, 12), [SAVE]),
        (CheckpointEnded(41.2, 12), [saved(12)]),
        (trained(41.5, 40), [SAVE]),
        (CheckpointEnded(42.0, 40), [saved(40), LAST_TEST]),
        (evaluated(41.5, 0.9), [Finish(False, None)]),
    ),
    "nothing is ordered while no batch is computed": (
        {},
        (Started(), [SAVE]),
        (CheckpointEnded(1.0, 0), [saved(0)]),
        (looked(20.0, 0), []),
        (looked(21.0, 1), [SAVE]),
        (CheckpointEnded(22.0, 1), [saved(1)]),
        (looked(40.0, 1), []),
        (looked(41.0, 2), [SAVE]),
    ),
    "a checkpoint is due as long after a resume as after any other": (
        {"position": Position(7, 70, 0.7, 5, [(2, 1), (4, 0)]), "resumed": True, "now": 100.0},
        (Started(), []),
        (looked(109.9, 1), []),
        (looked(110.0, 0), []),  # a checkpoint of this step exists
        (looked(110.1, 1), [SAVE]),
        (CheckpointEnded(110.2, 8), [saved(8)]),
        (looked(120.1, 4), []),
        (looked(120.2, 4), [SAVE]),
    ),
    # Even if no batch has been computed since the one before: replicas push at their end what they have accrued.
    "the last checkpoint follows the last push": (
        {"resumed": True},
        (looked(10.0, 40), [SAVE]),
        (CheckpointEnded(10.1, 38), [saved(38)]),
        (trained(11.0, 40), [SAVE]),
        (CheckpointEnded(12.0, 40), [saved(40), LAST_TEST]),
        (evaluated(11.0, 0.9), [Finish(False, None)]),
    ),
    "replicas that end while a checkpoint is being written": (
        {"resumed": True},
        (looked(10.0, 6), [SAVE]),
        (trained(11.0, 40), []),
        (CheckpointEnded(12.0, 6), [saved(6), SAVE]),
        (CheckpointEnded(13.0, 40), [saved(40), LAST_TEST]),
    ),
    "a signal orders the last checkpoint at once": (
        {},
        (Started(), [SAVE]),
        (CheckpointEnded(1.0, 0), [saved(0)]),
        (Signalled(), [LAST_SAVE, INTERRUPTED]),
        (Signalled(), []),
        (looked(30.0, 3), []),
        (trained(31.0, 3), []),
        (Signalled(), []),
        (CheckpointEnded(32.0, 2), [saved(2), Finish(True, None)]),
        (Signalled(), []),
    ),
    "a signal gives up a checkpoint that is being written": (
        {"resumed": True},
        (looked(10.0, 6), [SAVE]),
        (Signalled(), [LAST_SAVE, INTERRUPTED]),
        (CheckpointEnded(12.0, 8), [saved(8)]),  # before all replicas have ended
        (looked(40.0, 9), []),
        (trained(41.0, 9), [Finish(True, None)]),
    ),
    "the target accuracy stops the run once": (
        {"resumed": True, "goal": aiming_at(0.8)},
        (evaluated(3.0, math.nan), []),
        (evaluated(4.0, 0.79), []),
        (looked(10.0, 10), [SAVE]),
        (evaluated(9.0, 0.8), STOP_REACHED),  # while a checkpoint is being written
        (evaluated(9.5, 0.9), []),
        (CheckpointEnded(11.0, 10), [saved(10)]),
        (trained(12.0, 11), [SAVE]),
        (CheckpointEnded(13.0, 11), [saved(11), LAST_TEST]),
        (evaluated(12.0, 0.7), [Finish(False, 9.0, REACHED)]),
    ),
    "a signal after the target was reached": (
        {"resumed": True, "goal": aiming_at(0.8)},
        (evaluated(9.0, 0.8), STOP_REACHED),
        (Signalled(), [LAST_SAVE, INTERRUPTED]),
        (trained(12.0, 11), []),
        (CheckpointEnded(13.0, 11), [saved(11), Finish(True, 9.0, REACHED)]),
    ),
    "the final evaluation may reach the target": (
        {"resumed": True, "goal": aiming_at(0.8)},
        (trained(12.0, 4), [SAVE]),
        (CheckpointEnded(12.1, 4), [saved(4), LAST_TEST]),
        (evaluated(11.0, 0.8), [Finish(False, 11.0)]),
    ),
    "the time to the target is that of the whole run": (
        {"position": Position(7, 70, 0.7, 5, [], seconds=100.0), "resumed": True, "goal": aiming_at(0.8)},
        (evaluated(9.0, 0.8), STOP_REACHED),
        (trained(12.0, 4), [SAVE]),
        (CheckpointEnded(12.1, 11), [saved(11), LAST_TEST]),
        (evaluated(11.0, 0.8), [Finish(False, 109.0, REACHED)]),
    ),
    "a coordinator saves and tests after iterations only": (
        {"epochs": 2, "coordinated": True},
        (Started(), [Save(position=START)]),
        (CheckpointEnded(1.0, 0), [saved(0)]),
        (looked(20.0, 5), []),
        (iterated(20.0, 1, 60), [at(12, 60, 1)]),
        (iterated(40.0, 2, 120, backups=3), [Log("backups", {"iteration": 2, "backups": 3, "won": 0}), TEST]),
        (evaluated(39.0, 0.5), []),
        (CheckpointEnded(41.0, 12), [saved(12)]),
        (iterated(51.0, 3, 180), [at(36, 180, 3)]),
        (CheckpointEnded(52.0, 36), [saved(36)]),
        (iterated(53.0, 4, 200), [Stop()]),  # two epochs: no test before the final one
        (trained(54.0, 40), [at(40, 200, 4)]),
        (CheckpointEnded(55.0, 40), [saved(40), LAST_TEST]),
        (evaluated(54.0, 0.5), [Finish(False, None)]),
    ),
    "an interrupted coordinator completes its iteration": (
        {"resumed": True, "coordinated": True},
        (Signalled(), [INTERRUPTED]),
        (iterated(1.0, 1, 110), [Stop()]),
        (trained(2.0, 22), [at(22, 110, 1)]),
        (CheckpointEnded(3.0, 22), [saved(22), Finish(True, None)]),
    ),
    "an interrupted coordinator lets a checkpoint be written": (
        {"resumed": True, "coordinated": True},
        (iterated(10.0, 1, 60), [at(12, 60, 1)]),
        (Signalled(), [INTERRUPTED]),
        (iterated(11.0, 2, 90), [Stop()]),
        (trained(12.0, 18), []),
        (CheckpointEnded(13.0, 12), [saved(12), at(18, 90, 2)]),
        (CheckpointEnded(14.0, 18), [saved(18), Finish(True, None)]),
    ),
    "a coordinator that reaches the target stops": (
        {"coordinated": True, "resumed": True, "goal": aiming_at(0.8)},
        (iterated(1.0, 1, 100), [TEST]),
        (evaluated(1.0, 0.8), STOP_REACHED),
    ),
    "a signal while a checkpoint is written after training": (
        {"resumed": True},
        (looked(10.0, 6), [SAVE]),
        (trained(11.0, 40), []),
        (Signalled(), [LAST_SAVE, INTERRUPTED]),
        (CheckpointEnded(12.0, 40), [saved(40), Finish(True, None)]),
    ),
    "a signal while the last checkpoint is written": (
        {"resumed": True},
        (trained(1.0, 40), [SAVE]),
        (Signalled(), [INTERRUPTED]),
        (CheckpointEnded(2.0, 40), [saved(40), Finish(True, None)]),
    ),
    "a signal during the final evaluation": (
        {"resumed": True},
        (trained(1.0, 40), [SAVE]),
        (CheckpointEnded(2.0, 40), [saved(40), LAST_TEST]),
        (Signalled(), [INTERRUPTED]),
        (evaluated(1.0, 0.9), [Finish(True, None)]),
        (Signalled(), []),
    ),
    "a signal after the end": (
        {"resumed": True},
        (trained(1.0, 40), [SAVE]),
        (CheckpointEnded(2.0, 40), [saved(40), LAST_TEST]),
        (evaluated(1.0, 0.9), [Finish(False, None)]),
        (Signalled(), []),
    ),
}


@pytest.mark.parametrize(("options", "steps"), [(options, steps) for options, *steps in SCRIPTS.values()], ids=SCRIPTS)
def test_what_is_told_and_answered(options, steps):
    script(supervisor(**options), *steps)


def test_interim_checkpoints_come_between_those_on_disk():
    interim = Save(interim=True)
    script(
        supervisor(interim=3.0),
        (Started(), [SAVE]),
        (CheckpointEnded(1.0, 0), [saved(0)]),
        (looked(3.9, 3), []),
        (looked(4.0, 3), [interim]),
        (looked(8.0, 5), []),  # still being written
        (CheckpointEnded(8.5, 4), [Log(CHECKPOINT, {"step": 4, "mirror": True})]),
        (looked(11.5, 5), [SAVE]),
        (CheckpointEnded(12.0, 5), [saved(5)]),
        (looked(15.0, 5), []),  # nothing is new
        (looked(15.1, 6), [interim]),
        (CheckpointEnded(15.2, 6, complete=False), []),
        (looked(18.2, 7), [interim]),
        (Signalled(), [LAST_SAVE, INTERRUPTED]),  # which gives it up
        (CheckpointEnded(18.5, 8), [saved(8)]),
    )


def test_a_coordinator_that_takes_over_orders_an_interim_checkpoint_anew():
    before, after = supervisor(interim=3.0, resumed=True), supervisor(interim=3.0, resumed=True)
    script(before, (looked(3.0, 3), [Save(interim=True)]))
    after.load(before.state())
    script(
        after,
        (TakenOver(), [Save(interim=True)]),
        (CheckpointEnded(4.0, 4), [Log(CHECKPOINT, {"step": 4, "mirror": True})]),
    )


@pytest.mark.parametrize(("batches", "noted"), [((12, 23), [3, 5]), ((17, 19), [4])])
def test_the_record_of_a_dropped_push(batches, noted):
    push = PushHeader(worker=2, ordinal=7, fetched=1, staleness=6, batches=batches)
    assert dropped(push, lambda batch: batch // 4) == Log("drop", {"worker": 2, "portions": noted, "staleness": 6})


def test_it_needs_neither_mpi_nor_hdf5():
    check = "import sys, mpidl.roles.supervision; sys.exit(any(name in sys.modules for name in ('mpi4py', 'h5py')))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


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
        (TrainingEnded(end), [Save(position=Position(60, 300, 3.0, 0, [], {"iteration": 5}, 7.0 + end.seconds))]),
    )
    assert end.seconds > 0


@pytest.mark.parametrize(("event", "failure"), DIVERGED)
def test_a_loss_that_is_not_finite_ends_the_run_once(event, failure):
    script(
        supervisor(resumed=True),
        (looked(10.0, 6), [SAVE]),
        (event, [failure]),
        (event, []),
        (CheckpointEnded(12.0, 6), []),
        (Signalled(), []),
        (trained(41.0, 9), []),
    )


def test_an_objective_that_is_not_finite_ends_the_run():
    event = iterated(1.0, 4, 60)
    broken = Iterated(event.totals, replace(event.iteration, objective=NAN))
    script(
        supervisor(resumed=True, coordinated=True),
        (iterated(1.0, 3, 30), []),
        (broken, [Fail(f"the objective is nan after iteration 4: {NO_OBJECTIVE}")]),
    )


@pytest.mark.parametrize("event", [event for event, _ in DIVERGED])
def test_a_run_that_may_go_on_does(event):
    script(
        supervisor(resumed=True, terminate_on_nan=False),
        (event, []),
        (trained(1.0, 40), [SAVE]),
        (CheckpointEnded(2.0, 40), [saved(40), LAST_TEST]),
        (evaluated(1.0, NAN, NAN), [Finish(False, None)]),
    )
