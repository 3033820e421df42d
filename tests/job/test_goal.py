"""What a run's section says of its goal, and the best checkpoint that a resumed run goes on from."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from mpidl.config import from_dict
from mpidl.errors import UsageError
from mpidl.job.build import build
from mpidl.job.checkpoints import Checkpoints
from mpidl.job.goal import Goal
from mpidl.job.placed import place
from mpidl.job.ready import ReadyJob, local_model
from mpidl.metrics.figures import Figures, Target
from mpidl.storage.checkpoints import write_best
from mpidl.storage.position import Best

BEST = Best(8, "test_loss", 0.25, 1.5)


def goal(validation, **run):
    return Goal.of(config(**run).run, validation)


def config(**run):
    layers = [{"type": "dense", "units": 10}]
    return from_dict({"run": run, "data": {"source": "digits"}, "model": {"layer": layers}})


def test_runs_without_a_target():
    assert goal(validation=False) == Goal("test_loss", True, None, None, False)
    assert goal(validation=True) == Goal("validation_loss", True, None, None, True)
    assert goal(validation=False, patience=3) == Goal("test_loss", True, None, 3, True)
    assert goal(validation=True, patience=3) == Goal("validation_loss", True, None, 3, True)


@pytest.mark.parametrize("split", ["test", "validation"])
def test_targets_decide_the_figure_and_what_is_better(split):
    validation = split == "validation"
    short = Target(f"{split}_accuracy", ">=", 0.5)
    assert goal(validation, target="accuracy >= 0.5") == Goal(short.figure, False, short, None, validation)
    target = Target(f"{split}_f1", "<", 0.5)
    assert goal(validation, target=f"{split}_f1<0.5", metrics=["f1"]) == Goal(
        target.figure, True, target, None, validation
    )
    other = "test" if validation else "validation"
    with pytest.raises(UsageError, match=rf"^run\.target: {other}_loss, but .*, expected {split}_loss"):
        goal(validation, target=f"{other}_loss < 1")


@pytest.mark.parametrize(("lower", "order"), [(True, (1, 2, 3)), (False, (3, 2, 1))])
def test_better(lower, order):
    figure, nan = Goal(lower=lower), float("nan")
    assert figure.better(order[0], order[1])
    assert not figure.better(order[1], order[0])
    assert not figure.better(2, 2)
    assert not figure.better(nan, 2)
    assert not figure.better(float("-inf") if lower else float("inf"), 2)


@pytest.fixture
def resumed(tmp_path):
    """Return a function: the checkpoints of a run that resumes from a checkpoint of some step."""

    def make(step, **run):
        job = build(config(dir=str(tmp_path), **run))
        placed = place(job, 1)
        if step is not None:
            checkpoint = SimpleNamespace(position=placed.position._replace(step=step))
            placed = replace(placed, job=replace(job, checkpoint=checkpoint, continues=True))
        return Checkpoints(ReadyJob(placed, local_model(placed), Figures(), tmp_path))

    return make


def test_a_resumed_run_finds_its_best(resumed, tmp_path):
    write_best(tmp_path, BEST)
    for step in (8, 9):
        assert resumed(step, patience=3).best == BEST


@pytest.mark.parametrize(
    ("step", "run"),
    [
        (None, {"patience": 3}),  # a run that begins
        (7, {"patience": 3}),  # one whose best was later, and damaged
        (8, {}),  # one that keeps none
        (8, {"patience": 3, "target": "accuracy >= 0.5"}),  # one that is after another figure
    ],
)
def test_what_is_not_its_best(resumed, tmp_path, step, run):
    write_best(tmp_path, BEST)
    assert resumed(step, **run).best is None
