"""What a process does when another one of its job ends: with a fake communicator, and a process that sleeps."""

import fcntl
import os
import queue
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from mpidl.launch import keeper, output
from mpidl.roles.events import Failed
from mpidl.survival import survival as module
from mpidl.survival.survival import Survival
from mpidl.survival.table import ProcessStage, ProcessTable
from mpidl.topology.roles import assign
from mpidl.topology.takeover import Fixed

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux only")
#: The rank of this process, and that of a worker which ends.
OWN, OTHER = 2, 3


@pytest.fixture
def sleeper():
    script = "import os, sys; os._exit(int(sys.stdin.readline()))"
    with subprocess.Popen([sys.executable, "-Sc", script], stdin=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.fixture
def job(monkeypatch, sleeper):
    """A job of four ranks, of which two others sleep; `ended` gets the code with which this process would end."""
    path, ended, said = ProcessTable.create(4), queue.Queue(), queue.Queue()
    monkeypatch.setattr("mpidl.survival.survival.at_work", lambda survival: None)
    monkeypatch.setattr(module, "say", said.put)
    monkeypatch.setattr(
        module, "os", SimpleNamespace(getpid=os.getpid, getppid=os.getppid, kill=os.kill, _exit=ended.put)
    )
    monkeypatch.setattr(module, "PASSING", 0.0)
    with subprocess.Popen([sys.executable, "-Sc", "import time; time.sleep(60)"]) as apart:
        parents = [os.getpid()] * 4

        def begin(obstacle=None):
            pids = [apart.pid, apart.pid, os.getpid(), sleeper.pid]
            answers = iter([pids, parents])
            comm = SimpleNamespace(
                rank=OWN, size=4, bcast=lambda found: path, allgather=lambda own: next(answers), Barrier=lambda: None
            )
            found = Survival(comm, assign([0] * 4, servers=1), Fixed(obstacle), None)
            found.table = ProcessTable(path, 4)
            found.table.stages[:] = ProcessStage.TRAINING
            started.append(found)
            return found

        started = []
        yield SimpleNamespace(begin=begin, ended=ended, said=said, parents=parents)
        for each in started:
            each.stop()
        apart.kill()
    path.unlink()


def end(sleeper, code):
    sleeper.stdin.write(f"{code}\n")
    sleeper.stdin.flush()


@pytest.mark.parametrize(("code", "parent"), [(0, None), (1, None), (7, None), (7, 0)])
def test_a_process_is_taken_over_whatever_its_code(job, sleeper, code, parent):
    """A parent that the process can't see is 0."""
    played = queue.Queue()
    if parent is not None:
        job.parents[OTHER] = parent
    survival = job.begin()
    with survival.taking_over(lambda rank, recovered: played.put(rank)):
        end(sleeper, code)
        assert played.get(timeout=60) == OTHER
    (died,) = survival.incidents(0)
    assert isinstance(died, Failed)
    assert (died.rank, died.signal, died.code) == (OTHER, None, code or None)
    assert (job.ended.empty(), job.said.empty(), survival.failed) == (True, True, False)


def test_a_process_whose_parent_has_died_ends_the_job_which_names_the_rank(job, sleeper):
    parent = subprocess.Popen([sys.executable, "-Sc", ""])
    parent.wait()
    job.parents[OTHER] = parent.pid
    survival = job.begin()
    sleeper.kill()
    assert job.ended.get(timeout=60) == 1
    why = f"was killed by SIGKILL, which ends the job: its parent, process {parent.pid}, has ended"
    assert job.said.get_nowait() == f"rank 3 (worker 1) {why}"
    assert survival.failed
    assert not survival.incidents(0)


def test_a_code_is_part_of_the_line_of_a_job_that_ends(job, sleeper, monkeypatch):
    told = queue.Queue()
    monkeypatch.setattr(module.marks, "tell_failed", lambda cause, **rank: told.put((cause, rank)))
    job.begin("its data belong to it")
    end(sleeper, 7)
    assert job.ended.get(timeout=60) == 1
    cause = "rank 3 (worker 1) has ended with exit code 7"
    assert job.said.get_nowait() == f"{cause}, which ends the job: its data belong to it"
    assert told.get_nowait() == (cause, {"rank": OTHER, "role": "worker 1"})


def test_output_that_nobody_reads_holds_no_lock_and_keeps_no_process_from_ending(job, sleeper, monkeypatch):
    read, speaking = threading.Event(), threading.Event()
    monkeypatch.setattr(output, "LAST_WORDS", 0.3)

    def say(line):
        speaking.set()
        read.wait(60)

    monkeypatch.setattr(module, "say", say)
    survival = job.begin("its data belong to it")
    sleeper.kill()
    assert speaking.wait(60)
    with survival.table.locked():
        assert survival.failed
    assert job.ended.get(timeout=60) == 1
    read.set()


def test_a_job_fails_although_another_process_stands_still_with_the_lock(job, monkeypatch):
    told = []
    monkeypatch.setattr(keeper, "ends_job", lambda: told.append(True))
    survival = job.begin()
    with survival.table.locked():
        survival.fail()
    assert survival.failed
    assert told == [True]


def test_a_process_whose_lock_something_has_closed_ends_with_a_line(job, sleeper, monkeypatch):
    def closed(file, operation):
        raise OSError(9, "Bad file descriptor")

    job.begin()
    monkeypatch.setattr(fcntl, "flock", closed)
    sleeper.kill()
    assert job.ended.get(timeout=60) == 1
    why = "rank 2 can't continue, OSError: [Errno 9] Bad file descriptor"
    assert job.said.get_nowait() == f"rank 3 (worker 1) was killed by SIGKILL, which ends the job: {why}"


def test_a_process_that_is_stopped_is_killed_though_nobody_reads_the_line(job, sleeper, monkeypatch):
    read = threading.Event()
    monkeypatch.setattr(output, "LAST_WORDS", 0.05)
    monkeypatch.setattr(module, "say", lambda line: read.wait(60))
    monkeypatch.setattr("mpidl.survival.watch.LOOK_EVERY", 0.02)
    monkeypatch.setattr("mpidl.survival.watch.STOPPED_FOR", 0.1)
    played = queue.Queue()
    with job.begin().taking_over(lambda rank, recovered: played.put(rank)):
        sleeper.send_signal(signal.SIGSTOP)
        assert played.get(timeout=60) == OTHER
    read.set()
    assert sleeper.wait(60) == -signal.SIGKILL
