"""Notice of processes that end, are killed or stopped."""

import os
import queue
import signal
import subprocess
import sys

import pytest

from mpidl.survival import watch
from mpidl.survival.watch import Watch, is_stopped, is_traced

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux only")


@pytest.fixture
def sleepers():
    started = [subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"]) for _ in range(3)]
    yield started
    for each in started:
        each.kill()
        each.wait()


@pytest.fixture
def watched(sleepers):
    ended = queue.Queue()
    found = Watch({number: each.pid for number, each in enumerate(sleepers)}, 9, lambda *each: ended.put(each))
    yield ended
    found.end()


@pytest.mark.parametrize("reaped", [False, True])
def test_a_killed_process_is_reported_at_once_with_its_signal(sleepers, watched, reaped):
    sleepers[1].kill()
    if reaped:
        sleepers[1].wait()
    assert watched.get(timeout=5)[0] == 1
    sleepers[2].terminate()
    assert watched.get(timeout=5) == (2, signal.SIGTERM)
    assert watched.empty()


def test_processes_that_have_ended_before_are_reported(sleepers):
    sleepers[0].kill()
    sleepers[0].wait()
    ended = queue.Queue()
    found = Watch({4: sleepers[0].pid}, 9, lambda *each: ended.put(each))
    assert ended.get(timeout=5) == (4, 0)
    found.end()


def test_a_process_that_is_stopped_for_long_is_killed_and_others_are_not(sleepers, watched, monkeypatch):
    monkeypatch.setattr(watch, "STOPPED_FOR", 0.5)
    sleepers[0].send_signal(signal.SIGSTOP)
    assert watched.get(timeout=10) == (0, signal.SIGKILL)
    assert watched.empty()


@pytest.mark.parametrize("hopeless", [False, True])
def test_the_job_decides_on_a_process_that_stands_still(sleepers, monkeypatch, hopeless):
    monkeypatch.setattr(watch, "STOPPED_FOR", 0.1)
    ended, asked = queue.Queue(), queue.Queue()

    def is_hopeless(process, stopped):
        asked.put((process, stopped))
        return stopped and hopeless

    found = Watch({4: sleepers[0].pid}, 9, lambda *each: ended.put(each), is_hopeless)
    assert asked.get(timeout=10) == (4, False)
    sleepers[0].send_signal(signal.SIGSTOP)
    while not asked.get(timeout=10)[1]:
        pass
    if hopeless:
        assert ended.get(timeout=10) == (4, signal.SIGKILL)
    found.end()
    assert ended.empty()


def test_only_stopped_processes_are_called_so(sleepers):
    assert not is_stopped(sleepers[0].pid)
    sleepers[0].send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, sleepers[0].pid, os.WSTOPPED | os.WNOWAIT)
    assert is_stopped(sleepers[0].pid)
    assert not is_stopped(2**22 + 1)


def test_a_process_that_another_traces_is_called_so(sleepers):
    assert not is_traced(sleepers[0].pid)
    trace = (
        "import ctypes, sys, time; ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), 0, 0); print(1); time.sleep(60)"
    )
    words = [sys.executable, "-uSc", trace, str(sleepers[0].pid)]  # PTRACE_SEIZE
    with subprocess.Popen(words, stdout=subprocess.PIPE) as tracer:
        tracer.stdout.readline()
        found = is_traced(sleepers[0].pid)
        tracer.kill()
    assert found
