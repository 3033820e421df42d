"""Directories of runs that others have prepared: nothing outside is written, read or deleted, and nothing hangs."""

import os
import shutil
from contextlib import contextmanager
from dataclasses import replace

import pytest
import tomli_w
from saved import POSITION, save

from mpidl.cli import main
from mpidl.config import from_dict
from mpidl.errors import MpidlError
from mpidl.parameters import Layout
from mpidl.paths import check_new
from mpidl.report.recorder import Recorder, first_failure, record_event
from mpidl.storage import tensor_files
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.checkpoints import newest_good, prune, read, steps, sweep, write_best
from mpidl.storage.lock import Lock
from mpidl.storage.position import Best
from rows import in_turn

SECRET = b"a secret of mode 600\n"
#: Steps of the checkpoints that are there, and of the next.
SAVED, NEXT = (0, 30, 42), 50


#: What a run goes on with.
JOB = {
    "data": {"source": "synthetic", "shape": [3], "classes": 2, "samples": 256},
    "model": {"layer": [{"type": "dense", "units": 2}]},
    "algorithm": {"name": "downpour"},
}
CONFIG = from_dict(JOB | {"run": {"epochs": 1}})


def save_small(checkpoints, step):
    save(checkpoints, Layout([("0-dense/weight", (3, 2))]), servers=1, position=POSITION._replace(step=step))


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Directory with a run, and with something outside of it that is none of its business."""
    directory = tmp_path_factory.mktemp("template")
    run, outside = directory / "runs" / "run", directory / "outside"
    for step in SAVED:
        save_small(run / "checkpoints", step)
    for name in ("metrics.jsonl", "events.jsonl"):
        (run / name).write_text('{"time": 1.0}\n')
    (run / "summary.json").write_text("{}\n")
    (run / ".lock").write_text("process 1 on host\n")
    (outside / "kept" / "deeper").mkdir(parents=True)
    (outside / "secret").write_bytes(SECRET)
    (outside / "kept" / "deeper" / "file").write_text("kept")
    save_small(outside / "saved", 7)
    return directory


@pytest.fixture
def place(template, tmp_path, monkeypatch):
    """A copy of the template, on a disk that needs no time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return tmp_path


def tree(path):
    """Return all that is in and below a path, without following links."""
    if path.is_symlink():
        return os.readlink(path)
    if path.is_dir():
        return {each.name: tree(each) for each in path.iterdir()}
    return path.read_bytes() if path.is_file() else path.lstat().st_mode


def go_on(run):
    """Write, rename and remove all that a run does that goes on, and export; return what stays beside checkpoints."""
    config = replace(CONFIG, run=replace(CONFIG.run, dir=str(run.parent), name=run.name))
    checkpoints = run / "checkpoints"
    Lock(run).close()
    strangers = sweep(checkpoints)
    found = newest_good(run)[0]
    recorder = Recorder(config, resume=True)
    try:
        recorder.metric({"time": 2.0})
        recorder.event("checkpoint", 0, "coordinator")
        record_event(run, "dropped", 1, "server 0")
        save_small(checkpoints, NEXT)
        prune(checkpoints, keep=1, newest=NEXT)
        write_best(run, Best(NEXT, "test_loss", 0.5, 1.0))
        recorder.summary({"samples": 1})
        first_failure(run, 0)
    finally:
        recorder.close()
    exported = run / "model.npz"
    check_new(exported, force=True)
    tensor_files.save(exported, "npz", read(Checkpoint(checkpoints / str(NEXT))).tensors, {})
    assert found.name == "42"
    return strangers


@contextmanager
def refused(path):
    """Let a line refuse what is at a path."""
    try:
        yield
    except MpidlError as error:
        line = str(error)
    else:
        return
    assert path.name in line
    assert "\n" not in line


#: Names that a run writes or has written, in its directory, with what it takes for temporary ones.
WRITTEN = (
    *(
        ".lock",
        "config.toml",
        "metrics.jsonl",
        "events.jsonl",
        "summary.json",
        "status.json",
        "best.json",
        ".failed",
        "model.npz",
    ),
    *(".config.toml", ".summary.json", ".best.json", "model.npz.partial", ".model.npz.partial"),
    *("checkpoints/.50", "checkpoints/50", f"checkpoints/.{NEXT}.replaced"),
)


def link(to):
    def lay(path, outside):
        path.symlink_to(outside / to)

    return lay


def hard_link(path, outside):
    path.hardlink_to(outside / "secret")


def pipe(path, outside):
    os.mkfifo(path)


def directory(path, outside):
    shutil.copytree(outside / "kept", path)


#: What lies at such a name.
LAID = {
    "a link to a file": link("secret"),
    "a link to nothing": link("absent"),
    "a link to a directory": link("kept"),
    "a link to a checkpoint": link("saved/7"),
    "another name of a file": hard_link,
    "a pipe": pipe,
    "a directory": directory,
}


def cleared(path):
    if path.is_file():
        path.unlink()
    return path


#: At each name: what a write would follow or change, and one of the others.
KINDS = [kind for kind in LAID if kind not in ("a link to a file", "another name of a file")]
AT_NAMES = [
    *((name, kind) for name in WRITTEN for kind in LAID if kind not in KINDS),
    *in_turn(WRITTEN, [(kind,) for kind in KINDS]),
]


@pytest.mark.parametrize(("name", "laid"), AT_NAMES)
def test_what_is_written_stays_in_the_directory(place, name, laid):
    run, outside = place / "runs" / "run", place / "outside"
    LAID[laid](cleared(run / name), outside)
    before, own = tree(outside), tree(run / name)
    with refused(run / name):
        go_on(run)
    assert tree(outside) == before
    if laid == "a directory" and name != "checkpoints/.50":  # which `save` uses, and `mpidl` doesn't
        assert tree(run / name) == own
    for path in run.rglob("*"):
        if laid != "another name of a file" and path.is_file() and not path.is_symlink():
            assert SECRET not in path.read_bytes()


def foreign(path, outside):
    path.mkdir()
    (path / "HEAD").write_text("ref: refs/heads/main\n")


def foreign_by_our_names(path, outside):
    path.mkdir()
    for name in ("index.h5", "shard-0.h5"):
        (path / name).write_text("my own notes\n" * 100)


def ours_and_another(path, outside):
    shutil.copytree(outside / "saved" / "7", path)
    (path / "notes.txt").write_text("this is the good one")


def ours_and_a_link(path, outside):
    shutil.copytree(outside / "saved" / "7", path)
    (path / "shard-9.h5").symlink_to(outside / "secret")


#: What isn't a checkpoint, or not only one.
FOREIGN = {
    "foreign files": foreign,
    "foreign files by our names": foreign_by_our_names,
    "a checkpoint and another file": ours_and_another,
    "a checkpoint with a link": ours_and_a_link,
    "a link to foreign files": link("kept"),
    "a link to a checkpoint": link("saved/7"),
    "a file": lambda path, outside: path.write_text("mine"),
}
#: Names that were removed, whatever they had.
REMOVED = (".git", ".3", ".3-0123456789abcdef", ".30.replaced", ".30.removed", "2023", "7")


@pytest.mark.parametrize(
    ("laid", "name", "linked"),
    [
        *in_turn(FOREIGN, [(name, False) for name in REMOVED], each=3),
        *in_turn(FOREIGN, [(".git", True), (".3", True), ("2023", True)]),
    ],
)
def test_only_checkpoints_are_removed(place, name, laid, linked):
    run, outside = place / "runs" / "run", place / "outside"
    checkpoints = run / "checkpoints"
    if linked:
        checkpoints.rename(place / "scratch")
        checkpoints.symlink_to(place / "scratch")
    FOREIGN[laid](checkpoints / name, outside)
    before, own = tree(outside), tree(checkpoints / name)
    assert go_on(run) == [name]
    assert tree(outside) == before
    assert tree(checkpoints / name) == own
    assert {"0", "50", name} == set(os.listdir(checkpoints))


@pytest.mark.parametrize(
    "to", ["runs/other", "runs/other/checkpoints", "absent", "outside/secret", "runs/run/checkpoints"]
)
def test_a_link_to_checkpoints_leads_to_a_directory_of_this_run_alone(place, to):
    run, other = place / "runs" / "run", place / "runs" / "other"
    shutil.copytree(run, other)
    (other / "config.toml").write_text("[run]\n")
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").symlink_to(place / to)
    before = tree(other), tree(place / "outside")
    with pytest.raises(MpidlError, match=r"^[^\n]*runs/run/checkpoints[^\n]*$"):
        go_on(run)
    assert (tree(other), tree(place / "outside")) == before
    assert not (place / "absent").exists()


def train(runs, name, *arguments):
    """Train, or go on with, a run of a name, and return the exit code."""
    config = runs.parent / "job.toml"
    config.write_text(tomli_w.dumps(JOB | {"run": {"name": name, "dir": str(runs), "steps": 4}}))
    return main(["train", str(config), *arguments])


@pytest.mark.parametrize("names", [("one", "other"), ("run", "run")])
def test_a_directory_of_checkpoints_has_one_owner(place, capfd, names):
    one, other = (place / each / name for each, name in zip("ab", names, strict=True))
    for run in (one, other):
        assert train(run.parent, run.name) == 0
    scratch = place / "scratch"
    (one / "checkpoints").rename(scratch)
    shutil.rmtree(other / "checkpoints")
    for run in (one, other):
        (run / "checkpoints").symlink_to(scratch)
    before = tree(scratch)
    capfd.readouterr()
    for command in (
        ["train", "--resume", str(other), "--set", "run.steps=8"],
        ["evaluate", str(other)],
        ["export", str(other), "--to", "npz"],
        ["export", str(other), "--to", "npz", "--step", "4"],
    ):
        assert main(command) == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert line == (
            f"mpidl: {other}/checkpoints: a link to {scratch}, which has the checkpoints of the run {one}, expected a "
            "directory for this run alone"
        )
        assert tree(scratch) == before
    # The owner goes on, also under another name, with which it is the owner, too.
    assert main(["train", "--resume", str(one), "--set", "run.steps=8"]) == 0
    renamed = one.rename(one.with_name("renamed"))
    assert main(["train", "--resume", str(renamed), "--set", "run.steps=12"]) == 0
    assert steps(scratch) == [0, 4, 8, 12]


@pytest.mark.parametrize("name", ["runs", "runs/run", "runs/run/checkpoints"])
def test_links_of_its_owner_are_followed(place, name):
    elsewhere = place / "scratch" / "of" / "mine"
    elsewhere.parent.mkdir(parents=True)
    (place / name).rename(elsewhere)
    (place / name).symlink_to(elsewhere)
    assert go_on(place / "runs" / "run") == []
    assert (place / name).is_symlink()
    assert steps(place / "runs" / "run" / "checkpoints") == [0, NEXT]
    assert str(NEXT) in {each.name for each in elsewhere.rglob("*")}


def test_a_run_that_others_prepared_goes_on_and_is_exported(place, capfd):
    """By the commands: foreign files where a run writes stay, and don't stop the run."""
    config, runs, outside = place / "job.toml", place / "runs", place / "outside"
    config.write_text(tomli_w.dumps(JOB | {"run": {"name": "trained", "dir": str(runs), "steps": 4}}))
    assert main(["train", str(config)]) == 0
    run = runs / "trained"
    for name in (".summary.json", ".config.toml", "model.npz.partial", "checkpoints/.1", "checkpoints/.2"):
        (run / name).symlink_to(outside / "kept" if "checkpoints" in name else outside / "secret")
    foreign(run / "checkpoints" / ".git", outside)
    foreign(run / "checkpoints" / "2023", outside)
    shutil.copytree(run / "checkpoints" / "4", run / "checkpoints" / ".3")
    before = tree(outside)
    capfd.readouterr()
    assert main(["train", "--resume", str(run), "--set", "run.steps=8"]) == 0
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "stay as they are" in line]
    assert line.endswith("/checkpoints: no checkpoints of mpidl, which stay as they are: .1, .2, .git, 2023")
    assert main(["export", str(run), "--to", "npz"]) == 0
    assert tree(outside) == before
    assert set(os.listdir(run / "checkpoints")) == {".1", ".2", ".git", "2023", "0", "4", "8"}
