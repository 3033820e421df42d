"""Notice of processes that end, are killed or stopped, and of workers that hang."""

import os
import queue
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from mpidl.survival import watch
from mpidl.survival.watch import BATCHES, SECONDS, TIMES, Pace, Watch, is_stopped, is_traced

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
    assert watched.get(timeout=60)[0] == 1
    sleepers[2].terminate()
    assert watched.get(timeout=60) == (2, -signal.SIGTERM)
    assert watched.empty()


def test_processes_that_have_ended_before_are_reported(sleepers):
    sleepers[0].kill()
    sleepers[0].wait()
    ended = queue.Queue()
    found = Watch({4: sleepers[0].pid}, 9, lambda *each: ended.put(each))
    assert ended.get(timeout=60) == (4, 0)
    found.end()


def test_a_process_that_is_stopped_for_long_is_killed_and_others_are_not(sleepers, watched, monkeypatch):
    monkeypatch.setattr(watch, "STOPPED_FOR", 0.5)
    sleepers[0].send_signal(signal.SIGSTOP)
    assert watched.get(timeout=60) == (0, -signal.SIGKILL)
    assert watched.empty()


@pytest.mark.parametrize("hopeless", [False, True])
def test_the_job_decides_on_a_process_that_stands_still(sleepers, monkeypatch, hopeless):
    monkeypatch.setattr(watch, "STOPPED_FOR", 0.1)
    ended, asked = queue.Queue(), queue.Queue()

    def is_hopeless(process, stopped):
        asked.put((process, stopped))
        return stopped and hopeless

    found = Watch({4: sleepers[0].pid}, 9, lambda *each: ended.put(each), is_hopeless)
    assert asked.get(timeout=60) == (4, False)
    sleepers[0].send_signal(signal.SIGSTOP)
    while not asked.get(timeout=60)[1]:
        pass
    if hopeless:
        assert ended.get(timeout=60) == (4, -signal.SIGKILL)
    found.end()
    assert ended.empty()


def looks(monkeypatch, processes, times, clocks=lambda number: 7, own=9):
    """Return what `own` finds of a stopped process at looks at given times: which it is, and if it has stood still."""
    times, found = iter(times), queue.Queue()

    def now():
        at = next(times, None)
        return found.put(None) or 0.0 if at is None else at

    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=now, clock_gettime_ns=clocks))
    monkeypatch.setattr(watch, "is_stopped", lambda pid: True)
    monkeypatch.setattr(watch, "LOOK_EVERY", 1e-3)
    pids = {number: each.pid for number, each in processes.items()}
    at_work = Watch(pids, own, lambda *ended: None, lambda *standing: found.put(standing))
    answers = list(iter(lambda: found.get(timeout=60), None))
    at_work.end()
    return answers


def test_a_process_that_has_stood_still_all_the_time_is_stopped(sleepers, monkeypatch):
    found = looks(monkeypatch, {4: sleepers[0]}, [0.0, 1.0, 2.0, 3.0, 4.5, 5.5])
    assert found == [(4, False), (4, False), (4, False), (4, True), (4, True)]


def test_a_process_that_is_stopped_at_each_look_and_computes_in_between_is_not(sleepers, monkeypatch):
    clock = iter(range(100))
    found = looks(monkeypatch, {4: sleepers[0]}, range(10), clocks=lambda number: next(clock))
    assert found == [(4, False)] * 9


def test_the_clock_is_that_of_the_process(sleepers, monkeypatch):
    assert watch.cpu_clock(os.getpid()) > 0
    assert watch.cpu_clock(2**22 + 1) == 0
    asked = set()
    looks(monkeypatch, {4: sleepers[0]}, range(3), clocks=asked.add)
    assert asked == {~sleepers[0].pid << 3 | 2}


def test_after_a_pause_of_the_watch_itself_the_time_counts_anew(sleepers, monkeypatch):
    found = looks(monkeypatch, {4: sleepers[0]}, [0.0, 1.0, 2.5, 4.4, 9.0, 10.0, 11.5, 12.5])
    assert [stopped for _, stopped in found] == [False, False, True, False, False, False, True]


def test_each_process_is_watched_by_the_one_before_it_that_lives(sleepers, monkeypatch):
    for own in range(4):
        following = [(own + step) % 4 for step in (1, 2, 3)]
        for first in range(3):
            living = dict(zip(following[first:], sleepers, strict=False))
            assert looks(monkeypatch, living, [0.0, 1.0], own=own) == [(following[first], False)]


def test_who_hears_of_an_end_and_waits_keeps_nobody_from_being_watched(sleepers):
    heard, go_on = queue.Queue(), threading.Event()

    def ended(*end):
        heard.put(end)
        assert go_on.wait(60)

    at_work = Watch({number: each.pid for number, each in enumerate(sleepers)}, 9, ended)
    for number, each in enumerate(sleepers):
        each.kill()
        assert heard.get(timeout=60) == (number, -signal.SIGKILL)
    go_on.set()
    at_work.end()


def test_the_code_with_which_a_process_has_ended(sleepers):
    ended = queue.Queue()
    script = "import os, sys; sys.stdin.read(); os._exit(7)"
    with subprocess.Popen([sys.executable, "-Sc", script], stdin=subprocess.PIPE) as process:
        at_work = Watch({4: process.pid}, 9, lambda *each: ended.put(each))
        assert not watch.has_ended(process.pid)
        process.stdin.close()
        assert ended.get(timeout=60) == (4, 7)
        assert watch.has_ended(process.pid), "a zombie, or gone"
    assert watch.has_ended(process.pid)
    at_work.end()


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


# When a worker counts as hanging.

#: The processes that the tests look at: one that watches, a worker that may hang, and two others.
OWN, WORKER, OTHERS = 0, 1, (2, 3)


class Node:
    """Processes that compute batches; one of them looks at the worker every second."""

    def __init__(self, done=BATCHES, longest=1.0, hang_after=None):
        self.rows = np.zeros((3, 4), np.int64)
        self.begun, self.done, self.longest = self.rows
        self.rows[:, WORKER] = 1 + done, done, round(longest * 1e9)
        self.pace, self.now, self.alive = Pace(self.rows, OWN, hang_after), 100.0, [OWN, WORKER, *OTHERS]

    def others_compute(self, batches):
        self.begun[OTHERS[0]] += batches
        self.done[OTHERS[0]] += batches

    def look(self, seconds, every=1.0):
        """Return whether the worker counts as hanging once some seconds have passed."""
        found = self.pace.hangs(WORKER, self.alive, self.now)
        for _ in range(round(seconds / every)):
            self.now += every
            found = self.pace.hangs(WORKER, self.alive, self.now)
        return found


def test_a_worker_hangs_in_a_batch_that_takes_minutes_while_others_go_on():
    node = Node()
    node.begun[OTHERS[1]] = 1  # hangs, too
    assert not node.look(SECONDS + 5)
    node.others_compute(BATCHES - 1)
    assert not node.look(5)
    node.others_compute(1)
    assert node.look(1)


def test_a_worker_hangs_for_which_all_others_wait():
    node = Node()
    node.begun[OTHERS[1]] = 1
    assert not node.look(SECONDS + 5)
    node.done[OTHERS[1]] = 1
    assert node.look(1)


def test_those_that_have_died_in_a_batch_are_not_waited_for():
    node = Node()
    node.begun[OTHERS[1]] = 1
    node.alive.remove(OTHERS[1])
    assert node.look(SECONDS + 5)


@pytest.mark.parametrize(
    ("node", "seconds"),
    [
        (Node(), SECONDS - 5),
        (Node(longest=100.0), 100 * TIMES - 5),
        (Node(done=BATCHES - 1), 10 * SECONDS),  # It may compile.
    ],
)
def test_a_worker_that_is_slow_does_not_hang(node, seconds):
    node.look(0)
    node.others_compute(10 * BATCHES)
    assert not node.look(seconds)


def test_a_worker_hangs_in_its_first_batch_if_people_say_after_what_time():
    node = Node(done=0, longest=0.0, hang_after=7.0)
    node.look(0)
    node.others_compute(BATCHES)
    assert not node.look(6)
    assert node.look(2)
    slow = Node(longest=100.0, hang_after=7.0)
    slow.look(0)
    slow.others_compute(BATCHES)
    assert slow.look(8)


def test_a_worker_between_two_batches_does_not_hang():
    node = Node()
    node.done[WORKER] += 1
    assert not node.look(2 * SECONDS)


def test_each_batch_has_its_time():
    node = Node()
    node.look(SECONDS - 5)
    node.rows[:2, WORKER] += 1
    assert not node.look(SECONDS - 5)
    assert node.look(10)


def test_a_process_that_stood_still_itself_begins_anew():
    node = Node()
    node.look(SECONDS - 5)
    assert not node.look(60, every=60.0)
    assert not node.look(SECONDS - 5)
    assert node.look(10)


def test_what_a_process_shows_of_its_batches(monkeypatch):
    monkeypatch.setattr(sys, "gettrace", lambda: None)  # where the tests' coverage is measured
    node = Node()
    with node.pace.computing():
        assert node.rows[:2, OWN].tolist() == [1, 0]
    with pytest.raises(ZeroDivisionError), node.pace.computing():
        raise ZeroDivisionError
    assert node.rows[:2, OWN].tolist() == [2, 2]
    assert 0 < node.pace.longest(OWN) < 10


def test_a_debugger_takes_its_time():
    node, before = Node(), sys.gettrace()
    sys.settrace(lambda *each: None)
    try:
        with node.pace.computing():
            assert node.begun[OWN] == node.done[OWN]
    finally:
        sys.settrace(before)
