"""Which checkpoint is the best: its name on disk, and that it stays."""

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


def test_the_best_stays_however_few_are_kept(tmp_path):
    for step in (0, 5, 10, 20, 30):
        save(tmp_path, position=POSITION._replace(step=step))
    checkpoints.prune(tmp_path, keep=1, newest=30, best=10)
    assert checkpoints.steps(tmp_path) == [0, 10, 30]


def test_a_checkpoint_that_was_chosen(tmp_path):
    for step in (0, 10):
        save(tmp_path / "checkpoints", position=POSITION._replace(step=step))
    write_best(tmp_path, Best(10, "test_loss", 0.25, 1.5))
    assert checkpoint_of(tmp_path, 0).position.step == 0
    assert checkpoint_of(tmp_path, "best").position.step == 10
    with pytest.raises(UsageError, match="no checkpoint of step 7, there are those of 0, 10"):
        checkpoint_of(tmp_path, 7)
    damaged = tmp_path / "checkpoints" / "10" / "index.h5"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(MpidlError):
        checkpoint_of(tmp_path, 10)
