"""The end of a job in which one rank raises an error."""

import sys
import threading
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from mpidl.errors import MpidlError, named
from mpidl.launch import output
from mpidl.runs import world as module
from mpidl.runs.process import end_job_together
from mpidl.runs.world import World
from mpidl.topology.roles import assign


@pytest.fixture
def fail(monkeypatch):
    """Let rank 2 of three raise an error; returns the codes with which it has ended the job."""
    codes = []
    world = World.__new__(World)
    world.comm, world.rank, world.directory = SimpleNamespace(Abort=codes.append), 2, None
    world.roles = replace(assign([0] * 3, servers=1), hosts=("h1",) * 3)
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=lambda seconds: None))

    def run(error):
        with world.failing_together():
            raise error
        return codes

    return run


class SilentError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def closed(*arguments, **options):
    raise OSError(9, "Bad file descriptor")


@pytest.mark.parametrize("what", ["survival.fail", "say", "marks.tell_failed", "show_traceback"])
def test_nothing_that_raises_keeps_a_rank_from_ending_the_job(fail, monkeypatch, what):
    monkeypatch.setenv("MPIDL_DEBUG", "1")
    monkeypatch.setattr(f"mpidl.runs.world.{what}", closed)
    assert fail(RuntimeError("out of luck")) == [1]


def test_an_error_without_words_ends_the_job(fail):
    assert fail(SilentError()) == [1]


def test_output_that_nobody_reads_keeps_no_rank_from_ending_the_job(fail, monkeypatch):
    read = threading.Event()
    monkeypatch.setattr(output, "LAST_WORDS", 0.05)
    monkeypatch.setattr(module, "say", lambda line: read.wait(60))
    assert fail(RuntimeError("out of luck")) == [1]
    read.set()


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (SystemExit(), "sys.exit() was called"),
        (SystemExit(3), "sys.exit(3) was called"),
        (SystemExit("no licence"), "sys.exit('no licence') was called"),
        (AssertionError(), "AssertionError"),
        (KeyError("x"), "KeyError: 'x'"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (MpidlError("data: too few"), "data: too few"),
    ],
    ids=repr,
)
def test_the_cause(fail, capfd, error, cause):
    fail(error)
    assert capfd.readouterr().err == f"mpidl: rank 2 (worker 0) failed: {cause}\n"


def test_the_exit_of_a_rank_is_that_of_the_user(monkeypatch):
    """It has another type where others may wait for the rank."""
    monkeypatch.setattr(sys, "exit", sys.exit)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setenv("MPIDL_RANK_PROCESS", "")  # So that monkeypatch removes what is set below.
    monkeypatch.delenv("MPIDL_RANK_PROCESS")
    for name in ("exit", "quit"):
        monkeypatch.setattr(f"builtins.{name}", None, raising=False)
    end_job_together()
    with pytest.raises(SystemExit) as caught:
        sys.exit()
    assert type(caught.value) is not SystemExit
    assert named(caught.value) == "sys.exit() was called"
