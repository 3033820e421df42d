"""Checkpoints of a run: the best, those that are chosen by their steps, and which of them stay."""

import pytest
from saved import POSITION, save

from mpidl.errors import MpidlError, UsageError
from mpidl.storage import checkpoints
from mpidl.storage.checkpoints import BEST, checkpoint_of, read_best, step_of, write_best
from mpidl.storage.position import Best


def test_what_is_written_is_read(tmp_path):
    assert read_best(tmp_path) is None
    for step in (7, 8):
        best = Best(step, "validation_loss", 0.25, 1.5)
        write_best(tmp_path, best)
        assert read_best(tmp_path) == best
    assert [path.name for path in tmp_path.iterdir()] == [BEST]
    assert (tmp_path / BEST).read_text() == '{"step":8,"figure":"validation_loss","value":0.25,"epoch":1.5}\n'


def test_steps_by_number_and_by_name(tmp_path):
    assert [step_of(tmp_path, step) for step in (7, "7")] == [7, 7]
    with pytest.raises(UsageError, match=r"no best checkpoint: only runs with run\.patience or validation data"):
        step_of(tmp_path, "best")
    write_best(tmp_path, Best(8, "test_loss", 0.25, 1.5))
    assert step_of(tmp_path, "best") == 8
    for step in ("last", -3, "1.5"):
        with pytest.raises(UsageError, match="step: expected a number or 'best', found"):
            step_of(tmp_path, step)


def test_a_file_that_can_not_be_read_or_written(tmp_path):
    (tmp_path / BEST).write_text("{")
    with pytest.raises(MpidlError, match=r"best\.json: can't be read"):
        read_best(tmp_path)
    with pytest.raises(MpidlError, match=r"best\.json: can't be written: No such file"):
        write_best(tmp_path / "nowhere", Best(8, "test_loss", 0.25, 1.5))


def test_a_checkpoint_that_was_chosen(tmp_path):
    for step in (0, 10):
        save(tmp_path / "checkpoints", position=POSITION._replace(step=step))
    write_best(tmp_path, Best(10, "test_loss", 0.25, 1.5))
    assert checkpoint_of(tmp_path, 0).position.step == 0
    assert checkpoint_of(tmp_path, "best").position.step == 10


@pytest.mark.parametrize(
    ("saved", "kept", "left"),
    [
        ((0, 5, 10, 100, 20), {"keep": 2, "newest": 100}, [0, 20, 100]),
        ((0, 30, 42, 60, 35), {"keep": 1, "newest": 35}, [0, 35]),  # passed over when the run was resumed
        ((0, 5, 10, 20, 30), {"keep": 1, "newest": 30, "best": 10}, [0, 10, 30]),
    ],
)
def test_the_initial_state_the_newest_and_the_best_stay(tmp_path, saved, kept, left):
    for step in saved:
        save(tmp_path, position=POSITION._replace(step=step))
    checkpoints.prune(tmp_path, **kept)
    assert checkpoints.steps(tmp_path) == left
