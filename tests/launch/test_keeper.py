"""The keepers of a job's processes: what launchers see of processes that die."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mpidl.launch.forwarding import end_session, identity
from mpidl.launch.keeper import VARIABLE
from mpidl.survival.watch import has_ended

#: A process with a keeper, which a launcher starts: it says its number, and does what is asked.
PROCESS = """
import os, signal, sys, time
from mpidl.launch import keeper, signals
signals.hold()
keeper.keep(signals.STOPPING)
print(os.getpid(), flush=True)
exec(sys.argv[1])
"""
DIE = "os.kill(os.getpid(), signal.SIGKILL)"
MAY = "keeper.may_die(); "


@pytest.fixture
def start(tmp_path, bare_environment):
    """Starts a process of one job with a keeper; returns the keeper, whose ``process`` is the process's number."""
    keepers = []
    (tmp_path / "lock").touch()

    def begin(action, setsid=False, **variables):
        keeper = subprocess.Popen(
            [sys.executable, "-c", PROCESS, action],
            env=bare_environment | {VARIABLE: str(tmp_path / "lock")} | variables,
            start_new_session=setsid,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        keepers.append(keeper)
        keeper.process = int(keeper.stdout.readline())
        assert keeper.process != keeper.pid
        return keeper

    yield begin
    for keeper in keepers:
        keeper.kill()
        keeper.wait()
        keeper.stdin.close()
        keeper.stdout.close()


@pytest.mark.parametrize(
    ("action", "code"),
    [
        (DIE, -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
        ("sys.exit(3)", 3),
        ("sys.exit(0)", 0),
        (MAY + "keeper.ends_job(); os._exit(1)", 1),
        (MAY + "keeper.ends_job(); sys.exit(2)", 2),
    ],
)
def test_what_a_launcher_sees_at_once(start, action, code):
    start("sys.stdin.read()")
    assert start(action).wait(timeout=60) == code


def test_a_death_that_others_see_to_and_ends_after_it_wait_for_all(start):
    last = start(MAY + "sys.stdin.read()")
    ended = [start(MAY + each) for each in (DIE, "sys.exit(0)", "sys.exit(75)", "os._exit(7)", "os._exit(1)")]
    time.sleep(0.2)
    assert [each.poll() for each in ended] == [None] * 5
    last.stdin.close()
    assert [each.wait(timeout=60) for each in (last, *ended)] == [0, 0, 0, 75, 0, 0]


def test_a_process_does_without_the_pipe_to_its_keeper(start):
    assert start("os.closerange(3, 64); keeper.may_die(); sys.exit(3)").wait(timeout=60) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_signals_reach_the_process(start, number):
    keeper = start("sys.exit(40 + signal.sigwait(signals.STOPPING))")
    keeper.send_signal(number)
    assert keeper.wait(timeout=60) == 40 + number


def test_the_process_of_a_keeper_has_its_own_directory_and_the_keeper_none(start):
    keeper = start(
        "import mpidl.launch.environment as environment; environment.prepare_rank();"
        "print(os.environ['OMPI_MCA_osc_sm_backing_directory'], flush=True)",
        PMI_RANK="0",
    )
    directory = Path(keeper.stdout.readline().strip())
    assert directory.name.split(".")[3] == str(keeper.process)
    assert keeper.wait(timeout=60) == 0
    assert not directory.exists()


def test_a_launcher_finds_its_keepers_and_what_they_keep_in_sessions_of_their_own(start):
    """As those of MPICH are, which outlive the launcher's daemon."""
    own, other = (
        start("print(flush=True); time.sleep(60)", MPIDL_LAUNCHER=each, setsid=True) for each in (identity(), "1.1")
    )
    for each in (own, other):
        each.stdout.readline()
    end_session(2**22 + 1)
    assert own.wait(timeout=60) == -signal.SIGKILL
    assert has_ended(own.process)
    assert other.poll() is None


def test_a_process_ends_with_its_keeper(start):
    keeper = start("print(flush=True); time.sleep(60)")
    keeper.stdout.readline()
    ended = os.pidfd_open(keeper.process)
    keeper.kill()
    assert select.select([ended], [], [], 10)[0]
    os.close(ended)
