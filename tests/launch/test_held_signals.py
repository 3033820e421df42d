"""Signals are held from a process's start to its end, and handled in between."""

import signal
import subprocess
import sys

import pytest

from mpidl.launch.signals import STOPPING

#: A process that says what it does and gets a signal before, during and after `handled`.
PHASES = """
import os, signal, sys
from mpidl.launch import signals
number, phase = int(sys.argv[1]), sys.argv[2]
received = []
def now(name):
    if phase == name:
        os.kill(os.getpid(), number)
signals.hold()
now("before")
with signals.handled(lambda number, frame: received.append(number)):
    now("during")
now("after")
print(received)
sys.exit(3)
"""


def run(code, number, phase):
    """Return the exit code and the output of a process."""
    call = [sys.executable, "-c", code, str(int(number)), phase]
    done = subprocess.run(call, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize("number", STOPPING)
@pytest.mark.parametrize(("phase", "handled"), [("before", True), ("during", True), ("after", False)])
def test_a_signal_in_each_phase(number, phase, handled):
    assert run(PHASES, number, phase) == (3, f"{[int(number)] if handled else []}\n")


@pytest.mark.parametrize(
    ("last", "patience", "code"), [("time.sleep(300)", 0.5, 75), ("time.sleep(0.1)", 60, 3), ("take()", 2, 3)]
)
def test_a_signal_that_nothing_takes_ends_the_process(last, patience, code):
    take = "def take():\n    with signals.handled(lambda number, frame: None):\n        pass\n    time.sleep(3)\n"
    call = f"import time\n{PHASES}".replace(
        "print(received)", f"signals.stop_if_pending(lambda: None, {patience})\nos.kill(os.getpid(), number)\n{last}"
    )
    assert run(take + call, signal.SIGUSR1, "never")[0] == code


def test_nohup_is_respected():
    call = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + PHASES
    assert run(call, signal.SIGHUP, "during") == (3, "[]\n")


def test_the_command_holds_signals_before_it_imports_anything(bare_environment, tmp_path):
    """A module that takes its time while it is imported stands for NumPy on a slow file system."""
    (tmp_path / "argparse.py").write_text(
        "import time\nprint('importing', flush=True)\ntime.sleep(1)\nraise SystemExit(3)"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "mpidl", "train"],
        cwd=tmp_path, env=bare_environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "importing\n"
    for number in STOPPING:
        process.send_signal(number)
    assert process.wait(timeout=60) == 3
    process.stdout.close()


@pytest.mark.parametrize("number", STOPPING)
def test_a_thread_that_has_begun_in_between_lets_no_signal_through(number):
    threaded = PHASES.replace(
        '    now("during")', "    threading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    threaded = threaded.replace('now("after")', 'now("after")\ntime.sleep(0.1)')
    assert run(f"import threading, time\n{threaded}", number, "after") == (3, "[]\n")


#: A process that saves and exits, or catches the exit and continues; it receives a signal at interpreter exit.
ENDING = """
import atexit, os, signal, sys
from mpidl.launch import signals
atexit.register(lambda: os.kill(os.getpid(), int(sys.argv[1])))
try:
    with signals.held():
        sys.exit(3)
except SystemExit:
    if sys.argv[2] == "exits":
        raise
    print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""


@pytest.mark.parametrize(("number", "way"), [(signal.SIGTERM, "exits"), (signal.SIGUSR1, "exits"), (0, "goes on")])
def test_a_process_that_ends_after_it_has_saved_keeps_its_exit_code(number, way):
    assert run(ENDING, number, way) == ((3, "") if way == "exits" else (0, "True set()\n"))
