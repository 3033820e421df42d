"""A kill between any two changes of a directory leaves a good checkpoint, and none in part."""

import os
import shutil
from pathlib import Path

import pytest
from saved import LAYOUT, OTHER, POSITION, save, save_files

from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.checkpoints import discard, newest_good, prune, steps, sweep
from mpidl.storage.files import scratch
from mpidl.storage.integrity import verify
from mpidl.storage.writer import CheckpointIndex, save_index


class Killed(BaseException):
    """Stands for SIGKILL."""


@pytest.fixture
def killed_everywhere(tmp_path, monkeypatch):
    """Return a function that carries out an action in copies of a directory, killed before each system call in turn.

    It yields the copies: the last is that in which the action was completed.
    """

    def play(template, action):
        for number in range(100):
            copy = tmp_path / str(number)
            shutil.copytree(template, copy)
            with monkeypatch.context() as patch:
                calls = iter(range(number))
                for name in ("rename", "unlink", "rmdir", "fsync"):
                    patch.setattr(os, name, counted(getattr(os, name), calls))
                try:
                    action(copy)
                except Killed:
                    complete = False
                else:
                    complete = True
            yield copy
            if complete:
                return
        raise AssertionError("the action has no end")

    return play


def counted(call, calls):
    def wrapper(*arguments, **options):
        if next(calls, None) is None:
            raise Killed
        return call(*arguments, **options)

    return wrapper


def complete(run):
    """Complete a checkpoint 42 of 1001 samples."""
    position = POSITION._replace(samples=1001)
    save_index(scratch(run / "checkpoints", 42), CheckpointIndex(LAYOUT, 3, position, "", "0.0.1", {}, [OTHER]))


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Directory of a run with checkpoint 42 of 1000 samples, which is about to be replaced."""
    run = tmp_path_factory.mktemp("run")
    save(run / "checkpoints", position=POSITION._replace(samples=1000))
    save_files(scratch(run / "checkpoints", 42), seed=1)
    return run


def samples(run):
    """Return the number of samples of the newest checkpoint, which must be a good one."""
    path, lines = newest_good(run)
    assert not lines
    return Checkpoint(path).position.samples


def test_a_checkpoint_is_replaced_by_one_of_the_same_step(killed_everywhere, template):
    found = []
    for run in killed_everywhere(template, complete):
        left = sorted(os.listdir(run / "checkpoints"))
        sweep(run / "checkpoints")
        assert os.listdir(run / "checkpoints") == ["42"]
        found.append(samples(run))
    assert left == ["42"]
    assert sorted(set(found)) == [1000, 1001]
    assert found == sorted(found)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_sweep_may_be_killed_too(killed_everywhere, template, tmp_path, monkeypatch, reverse):
    """The newer of two checkpoints of one step is kept, however a directory is listed."""
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda *arguments: sorted(glob(*arguments), reverse=reverse))
    run = tmp_path / "run"
    shutil.copytree(template, run)
    # The state between the two renamings of a replacement.
    checkpoints = run / "checkpoints"
    (checkpoints / "42").rename(checkpoints / "old")
    complete(run)
    (checkpoints / "42").rename(checkpoints / ".7")
    (checkpoints / "old").rename(checkpoints / ".42.replaced")
    for swept in killed_everywhere(run, lambda copy: sweep(copy / "checkpoints")):
        sweep(swept / "checkpoints")
        assert os.listdir(swept / "checkpoints") == ["42"]
        assert samples(swept) == 1001


def test_pruning_leaves_no_checkpoint_in_part(killed_everywhere, tmp_path):
    run = tmp_path / "run"
    for step in (0, 5, 10, 20):
        save(run / "checkpoints", position=POSITION._replace(step=step))
    for pruned in killed_everywhere(run, lambda copy: prune(copy / "checkpoints", keep=1, newest=20)):
        for swept in (False, True):
            if swept:
                sweep(pruned / "checkpoints")
            left = steps(pruned / "checkpoints")
            assert {0, 20} <= set(left)
            for step in left:
                verify(pruned / "checkpoints" / str(step))
    assert left == [0, 20]


def test_a_whole_checkpoint_without_its_name_gets_it_and_a_half_one_goes(template, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(template, run)
    checkpoints = run / "checkpoints"
    (checkpoints / "42").rename(checkpoints / ".3")
    (checkpoints / ".42" / "shard-1.h5").unlink()
    (checkpoints / ".file").touch()
    sweep(checkpoints)
    assert sorted(os.listdir(checkpoints)) == [".file", "42"]
    assert samples(run) == 1000


def test_what_was_given_up_is_discarded_and_nothing_else(template, tmp_path):
    """Of the run with the token "ab", whose checkpoint of order 5 is complete while order 6 is being written."""
    run = tmp_path / "run"
    shutil.copytree(template, run)
    checkpoints = run / "checkpoints"
    names = [".3-ab", ".4-ab", ".6-ab", ".3-cd", ".7-0123456789abcdef.removed", ".42-0123456789abcdef.replaced"]
    for name in names:
        shutil.copytree(checkpoints / "42", checkpoints / name)
    (checkpoints / ".4-ab" / "index.h5").unlink()
    (checkpoints / ".git").mkdir()
    shutil.copytree(checkpoints / ".3-ab", checkpoints / ".2-ab")
    (checkpoints / ".2-ab" / "notes.txt").touch()
    discard(checkpoints, "ab", 5)
    assert sorted(os.listdir(checkpoints)) == [".2-ab", ".3-cd", ".42", ".6-ab", ".git", "42"]
