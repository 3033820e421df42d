"""What a supervisor makes of deaths of ranks, and a supervisor that goes on with the state of another."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from supervised import (
    INTERRUPTED,
    LAST_SAVE,
    LAST_TEST,
    SAVE,
    START,
    aiming_at,
    evaluated,
    looked,
    saved,
    script,
    supervisor,
    trained,
)

from mpidl.engines.totals import Spent, Totals, from_state, to_state
from mpidl.job.goal import Goal
from mpidl.roles.events import (
    CheckpointEnded,
    Diverged,
    Fail,
    Failed,
    Finish,
    Log,
    Recovered,
    Save,
    Signalled,
    Started,
    TakenOver,
    TrainingEnded,
    Unanswered,
)
from mpidl.roles.monitor import Plateau
from mpidl.shards.staleness import Histogram

GOAL = Goal("test_accuracy", lower=False, patience=3, keeps_best=True)

DEATH = Failed(3, "worker 1", "node7", 1234, "SIGKILL", 1e9, workers=1)

DEATH_LOG = Log(
    "failure",
    {"rank": 3, "role": "worker 1", "host": "node7", "pid": 1234, "signal": "SIGKILL", "noticed": 1e9, "code": None},
)

TAKEN_OVER = Recovered(2, "server 1", by=0, seconds=0.25, lost={"pushes": 1})

#: That of a process that was asked to leave.
DRAINED = Recovered(2, "server 1", by=0, seconds=0.25, lost={}, drained=True)

RECOVERY_LOG = Log("recovery", {"rank": 2, "role": "server 1", "by": 0, "seconds": 0.25, "lost": {"pushes": 1}})

HAPPENINGS = st.sampled_from(["look", "evaluate", "signal", "saved", "saved", "fail", "recover", "taken over"])


def plateau():
    return Plateau(GOAL, patience=1)


def end(seconds, batches):
    """Totals with all that a run has at its end."""
    staleness = Histogram()
    for each in (0, 0, 3, 5000):
        staleness.add(each)
    found = Totals(seconds, batches=batches, loss=float("nan"), staleness=staleness, spent=Spent(busy_seconds=[0.5]))
    return TrainingEnded(found)


#: The options of a supervisor, then events and the instructions after each.
SCRIPTS = {
    "deaths and recoveries are recorded and a checkpoint in progress is ordered anew": (
        {},
        (Started(), [SAVE]),
        (DEATH, [DEATH_LOG]),
        (TAKEN_OVER, [RECOVERY_LOG, SAVE]),
        (CheckpointEnded(1.0, 0), [saved(0)]),
        (TAKEN_OVER, [RECOVERY_LOG]),
        (DRAINED, [Log("handover", {"rank": 2, "role": "server 1", "by": 0, "seconds": 0.25, "lost": {}})]),
        (TakenOver(), []),
        (looked(20.0, 5), [SAVE]),
        (TakenOver(), [SAVE]),
        (Signalled(), [LAST_SAVE, Log("interrupted")]),
        (TAKEN_OVER, [RECOVERY_LOG, LAST_SAVE]),
        (trained(21.0, 6), []),
        (TAKEN_OVER, [RECOVERY_LOG, SAVE]),
        (CheckpointEnded(22.0, 6), [saved(6), Finish(interrupted=True, seconds_to_target=None)]),
    ),
    "a checkpoint that was given up is ordered again when the next is due or at once if it is the last": (
        {},
        (Started(), [SAVE]),
        (CheckpointEnded(1.0, 0), [saved(0)]),
        (looked(11.0, 6), [SAVE]),
        (CheckpointEnded(14.0, 0, complete=False), []),
        (looked(23.0, 7), []),
        (looked(24.0, 7), [SAVE]),
        (CheckpointEnded(25.0, 7), [saved(7)]),
        (Signalled(), [LAST_SAVE, INTERRUPTED]),
        (CheckpointEnded(27.0, 0, complete=False), [LAST_SAVE]),
        (CheckpointEnded(29.0, 9), [saved(9)]),
    ),
    "a checkpoint that is given up when the training is over leaves the last to be made": (
        {"resumed": True},
        (looked(11.0, 6), [SAVE]),
        (trained(12.0, 6), []),
        (CheckpointEnded(14.0, 0, complete=False), [SAVE]),
        (CheckpointEnded(15.0, 6), [saved(6), LAST_TEST]),
    ),
}


@pytest.mark.parametrize(("options", "steps"), [(options, steps) for options, *steps in SCRIPTS.values()], ids=SCRIPTS)
def test_what_is_told_and_answered(options, steps):
    script(supervisor(**options), *steps)


@given(
    st.lists(st.tuples(HAPPENINGS, st.integers(0, 1), st.sampled_from([0.0, 5.0, 12.0]), st.floats(0, 1)), max_size=40),
    st.booleans(),
    st.integers(1, 2),
)
def test_a_supervisor_is_replaced_at_every_event_by_one_with_its_state(happenings, resumed, min_workers):
    """Its state, sent as bytes, is all that the next one needs to answer as it would have."""

    def make():
        return supervisor(resumed=resumed, goal=GOAL, plateau=plateau(), min_workers=min_workers)

    now, batches, writing = 0.0, 0, False
    run = replaced = make()

    def tell(event):
        nonlocal replaced, writing
        state, replaced = msgspec.msgpack.encode(replaced.state()), make()
        replaced.load(msgspec.msgpack.decode(state))
        instructions = run.handle(event)
        assert replaced.handle(event) == instructions
        writing |= any(isinstance(each, Save) for each in instructions)
        return instructions

    tell(Started())
    for kind, number, seconds, accuracy in happenings:
        now += seconds
        batches += number
        if kind == "saved" and writing:
            writing = False
            tell(CheckpointEnded(now, batches))
        elif kind == "look":
            tell(looked(now, batches))
        elif kind == "evaluate":
            tell(evaluated(now, accuracy, epoch=now / 10))
        elif kind == "signal":
            tell(Signalled())
        elif kind == "fail":
            tell(DEATH)
        elif kind == "recover":
            tell(TAKEN_OVER)
        elif kind == "taken over":
            tell(TakenOver())
    instructions = tell(end(now, batches))
    while writing:
        writing = False
        instructions = tell(CheckpointEnded(now, batches))
    if LAST_TEST in instructions:
        instructions = tell(evaluated(now, 1.0, epoch=99.0))
    assert isinstance(instructions[-1], Finish | Fail)


def test_totals_come_back_from_their_state():
    totals = end(12.0, 7).totals
    again = from_state(msgspec.msgpack.decode(msgspec.msgpack.encode(to_state(totals))))
    assert again.staleness.statistics() == totals.staleness.statistics()
    assert repr(to_state(again)) == repr(to_state(totals))


def test_a_run_with_too_few_workers_saves_and_fails():
    cause = Fail("1 worker is left, topology.min_workers is 2; step 3 is saved", passing=True)
    run = supervisor(min_workers=2, resumed=True)
    script(run, (DEATH, [DEATH_LOG, LAST_SAVE]), (DEATH, [DEATH_LOG]), (Signalled(), [Log("interrupted")]))
    script(
        run,
        (trained(5.0, 3), []),
        (CheckpointEnded(6.0, 3), [saved(3), cause]),
        (DEATH, []),
        (CheckpointEnded(7.0, 3), []),
    )
    # At the end, there is nothing left for them to do; another coordinator has the last evaluation done again.
    run = supervisor(min_workers=2, resumed=True)
    script(run, (trained(5.0, 3), [SAVE]), (DEATH, [DEATH_LOG]), (CheckpointEnded(6.0, 3), [saved(3), LAST_TEST]))
    script(run, (TakenOver(), [LAST_TEST]), (evaluated(7.0, 0.5), [Finish(False, None)]), (TakenOver(), []))


def test_a_run_that_a_coordinator_drives_saves_again_after_its_next_iteration():
    from supervised import iterated

    run = supervisor(coordinated=True, resumed=True, every=10.0, goal=aiming_at(2.0))
    assert [type(each) for each in run.handle(iterated(10.0, 1, 50))] == [Save]
    assert run.handle(TAKEN_OVER) == [RECOVERY_LOG]
    assert [type(each) for each in run.handle(iterated(10.1, 2, 50))] == [Save]
    assert run.handle(Diverged(0, 1, 2.0))[0].cause.startswith("the loss is 2.0")
    assert START.step == 0


def test_a_run_that_workers_hold_up_after_a_signal_ends_with_what_is_saved():
    hung = Totals(50.0, samples=60, batches=6)
    found = supervisor()
    script(
        found,
        (Started(), [SAVE]),
        (CheckpointEnded(1.0, 0), [saved(0)]),
        (Signalled(), [LAST_SAVE, INTERRUPTED]),
        (Unanswered(hung, "rank 3 hangs"), [Finish(True, None, "rank 3 hangs; step 0 is saved")]),
    )
    assert found.trained == hung
