"""Which checkpoint is the best, when a run ends for want of better ones, and rates that fall on a plateau."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from supervised import (
    INTERRUPTED,
    LAST_SAVE,
    LAST_TEST,
    SAVE,
    TEST,
    iterated,
    looked,
    saved,
    script,
    supervisor,
    trained,
)

from mpidl.errors import NOT_FINITE
from mpidl.job.goal import Goal
from mpidl.metrics.figures import Target
from mpidl.roles.events import CheckpointEnded, EvaluationEnded, Fail, Finish, Keep, Log, Save, Signalled, Stop
from mpidl.roles.monitor import Monitor, Plateau
from mpidl.storage.position import Best, Position

VALIDATED = Goal("validation_loss", keeps_best=True)

PATIENT = Goal("validation_loss", patience=2, keeps_best=True)


def loss(value, epoch):
    return EvaluationEnded(
        epoch, epoch, {"validation_loss": value, "validation_accuracy": 1 - value, "test_loss": -value}
    )


def best(step, value, epoch, figure="validation_loss"):
    return Best(step, figure, value, epoch)


def gives_up(value, epochs="2 epochs"):
    return [Log("stopped", {"why": f"the validation loss has not improved on {value} for {epochs}"}), Stop()]


VALUES = st.lists(st.one_of(st.floats(-9, 9), st.just(math.nan)), max_size=12)


#: The options of a supervisor, then events and the instructions after each.
SCRIPTS = {
    "a better evaluation is saved at the next look": (
        {"resumed": True, "goal": VALIDATED},
        (loss(0.5, 1.0), []),
        (looked(1.0, 10), [SAVE]),
        (looked(1.1, 11), []),
        (CheckpointEnded(1.2, 11), [saved(11), Keep(best(11, 0.5, 1.0))]),
        (loss(0.6, 2.0), []),
        (looked(2.0, 20), []),
        (loss(0.5, 3.0), []),  # not better
        (looked(3.0, 30), []),
        (loss(0.4, 4.0), []),
        (looked(4.0, 40), [SAVE]),
        (CheckpointEnded(4.1, 40), [saved(40), Keep(best(40, 0.4, 4.0))]),
        (trained(4.2, 40), [SAVE]),
        (CheckpointEnded(4.3, 40), [saved(40), LAST_TEST]),
        (loss(0.45, 4.0), [Finish(False, None, best=best(40, 0.4, 4.0))]),
    ),
    "one that comes while another is written is saved after it": (
        {"resumed": True, "goal": VALIDATED},
        (loss(0.5, 1.0), []),
        (looked(1.0, 10), [SAVE]),
        (loss(0.4, 2.0), []),
        (looked(2.0, 20), []),
        (CheckpointEnded(2.1, 11), [saved(11), Keep(best(11, 0.5, 1.0))]),
        (looked(2.2, 21), [SAVE]),
        (CheckpointEnded(2.3, 22), [saved(22), Keep(best(22, 0.4, 2.0))]),
    ),
    "a checkpoint that is due anyway is of the best only after its evaluation": (
        {"resumed": True, "goal": VALIDATED},
        (looked(10.0, 9), [SAVE]),
        (loss(0.5, 1.0), []),
        (CheckpointEnded(10.5, 9), [saved(9)]),
        (looked(11.0, 11), [SAVE]),
        (CheckpointEnded(11.5, 11), [saved(11), Keep(best(11, 0.5, 1.0))]),
    ),
    "the final evaluation is of the last checkpoint": (
        {"resumed": True, "goal": VALIDATED},
        (trained(4.2, 40), [SAVE]),
        (CheckpointEnded(4.3, 40), [saved(40), LAST_TEST]),
        (loss(0.3, 4.0), [Keep(best(40, 0.3, 4.0)), Finish(False, None, best=best(40, 0.3, 4.0))]),
    ),
    "a checkpoint that was given up for the last one": (
        {"resumed": True, "goal": VALIDATED},
        (loss(0.5, 1.0), []),
        (looked(1.0, 10), [SAVE]),
        (Signalled(), [LAST_SAVE, INTERRUPTED]),
        (CheckpointEnded(1.2, 12), [saved(12), Keep(best(12, 0.5, 1.0))]),
    ),
    "without validation data or patience nothing is kept": (
        {"resumed": True, "goal": Goal("test_loss")},
        (EvaluationEnded(1.0, 1.0, {"test_loss": 0.5}), []),
        (looked(1.0, 10), []),
        (trained(1.0, 10), [SAVE]),
        (CheckpointEnded(1.2, 10), [saved(10), LAST_TEST]),
        (EvaluationEnded(2.0, 2.0, {"test_loss": 0.1}), [Finish(False, None)]),
    ),
    "the end of a run needs no patience": (
        {"resumed": True, "goal": PATIENT},
        (loss(0.5, 1.0), []),
        (trained(7.0, 60), [SAVE]),
        (CheckpointEnded(7.5, 60), [saved(60), Keep(best(60, 0.5, 1.0)), LAST_TEST]),
        (loss(0.6, 4.0), [Finish(False, None, None, best(60, 0.5, 1.0))]),
    ),
}


@pytest.mark.parametrize(("options", "steps"), [(options, steps) for options, *steps in SCRIPTS.values()], ids=SCRIPTS)
def test_what_is_told_and_answered(options, steps):
    script(supervisor(**options), *steps)


@pytest.mark.parametrize("late", [False, True])
def test_the_last_checkpoint_of_an_interrupted_run_may_be_the_best(late):
    run = supervisor(resumed=True, goal=VALIDATED)
    if not late:
        assert run.handle(loss(0.5, 1.0)) == []
    assert run.handle(Signalled()) == [LAST_SAVE, INTERRUPTED]
    if late:
        assert run.handle(loss(0.5, 1.0)) == []
    assert run.handle(trained(1.1, 11)) == []
    kept, finish = Keep(best(11, 0.5, 1.0)), Finish(True, None, best=best(11, 0.5, 1.0))
    assert run.handle(CheckpointEnded(1.2, 11)) == [saved(11), kept, finish]


def test_a_coordinator_saves_the_best_after_its_next_iteration():
    position = Position(24, 120, 1.2, 0, [], {"iteration": 2})
    script(
        supervisor(resumed=True, coordinated=True, goal=VALIDATED),
        (iterated(1.0, 1, 100), [TEST]),
        (loss(0.5, 1.0), []),
        (looked(1.1, 20), []),
        (iterated(2.0, 2, 120), [Save(position=position)]),
        (CheckpointEnded(2.5, 24), [saved(24), Keep(best(24, 0.5, 1.0))]),
    )


def test_a_validation_loss_that_is_not_finite_ends_the_run():
    failure = Fail(f"the validation loss is nan: {NOT_FINITE}")
    assert supervisor(resumed=True, goal=PATIENT).handle(loss(math.nan, 1.0)) == [failure]


def test_patience_counts_from_the_best():
    why = gives_up(0.4)[0].details["why"]
    script(
        supervisor(resumed=True, goal=PATIENT),
        (loss(0.5, 1.0), []),
        (loss(0.6, 2.0), []),
        (loss(0.4, 3.0), []),
        (loss(0.4, 4.0), []),
        (loss(0.41, 4.9), []),
        (loss(0.41, 5.0), gives_up(0.4)),
        (loss(0.39, 6.0), []),
        (trained(7.0, 60), [SAVE]),
        (CheckpointEnded(7.5, 60), [saved(60), Keep(best(60, 0.39, 6.0)), LAST_TEST]),
        (loss(0.39, 6.1), [Finish(False, None, why, best(60, 0.39, 6.0))]),
    )


def test_patience_with_a_figure_of_which_nothing_is_known():
    goal = Goal("validation_r2", lower=False, patience=1, keeps_best=True)
    why = "the validation r2 has been NaN or infinite for 1 epoch"
    script(
        supervisor(Position(7, 70, 0.7, 5, []), resumed=True, goal=goal),
        (EvaluationEnded(1.0, 1.0, {"validation_r2": math.nan}), []),
        (looked(1.0, 10), []),
        (EvaluationEnded(1.0, 2.0, {"validation_r2": math.nan}), [Log("stopped", {"why": why}), Stop()]),
    )


def test_a_resumed_run_goes_on_from_its_best():
    run = supervisor(Position(40, 400, 4.0, 5, []), resumed=True, goal=PATIENT, best=best(30, 0.5, 3.0))
    script(
        run,
        (loss(0.5, 4.5), []),
        (looked(1.0, 10), []),
        (loss(0.6, 5.0), gives_up(0.5)),
        (trained(7.0, 60), [SAVE]),
        (CheckpointEnded(7.5, 100), [saved(100), LAST_TEST]),
        (loss(0.6, 5.1), [Finish(False, None, gives_up(0.5)[0].details["why"], best(30, 0.5, 3.0))]),
    )


@pytest.mark.parametrize(("comparison", "values"), [("<", (0.9, 0.4, 0.3)), (">=", (0.1, 0.7, 0.8))])
def test_a_target_on_any_figure_in_both_directions(comparison, values):
    target = Target("validation_f1", comparison, values[1])
    run = supervisor(resumed=True, goal=Goal("validation_f1", target.lower, target, keeps_best=True))
    told = [run.handle(EvaluationEnded(epoch, epoch, {"validation_f1": value})) for epoch, value in enumerate(values)]
    why = f"the target validation_f1 {comparison} {values[1]:g} is reached"
    stop = [Log("stopped", {"why": why}), Stop()]
    assert told == ([[], [], stop] if comparison == "<" else [[], stop, []])
    assert run.handle(looked(1.0, 10)) == [SAVE]
    assert run.handle(CheckpointEnded(1.1, 10)) == [saved(10), Keep(best(10, values[2], 2, "validation_f1"))]


@given(VALUES, st.booleans(), st.lists(st.sampled_from(["order", "save"]), max_size=24))
def test_a_monitor_knows_the_best_of_any_values(values, lower, happenings):
    monitor = Monitor(Goal("test_loss", lower=lower, keeps_best=True))
    numbers, tops = iter(enumerate(values)), []
    for step, kind in enumerate(happenings):
        if (found := next(numbers, None)) is not None:
            epoch, value = found
            monitor.evaluated(value, epoch)
            if value == value and (not tops or (value < tops[-1][0] if lower else value > tops[-1][0])):
                tops.append((value, epoch))
        if kind == "order":
            monitor.ordered()
            assert not monitor.waits
        elif (kept := monitor.saved(step)) is not None:
            assert (kept.value, kept.epoch) in tops
            assert kept.step == step
    monitor.ordered()
    monitor.saved(99)
    assert (monitor.best is None) == (not tops)
    if tops:
        assert (monitor.best.value, monitor.best.epoch) == tops[-1]


def test_a_figure_that_is_no_number_at_first_hides_no_later_one():
    plateau = Plateau(Goal(), patience=1)
    figures = [math.nan, 0.75, 0.5, 0.25, math.inf, 0.25, 0.125]
    assert [plateau.evaluated(figure, epoch) for epoch, figure in enumerate(figures)] == [
        False, False, False, False, False, True, False,
    ]  # fmt: skip
    assert plateau.state() == {"reductions": 1, "best": 0.125, "since": 6}
