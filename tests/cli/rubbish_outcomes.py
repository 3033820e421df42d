"""How a command ends on a bad configuration, and what is wrong with that."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from mpidl import cli

#: Seconds after which a run that has begun is left alone, and any other command hangs.
LIMIT = 8.0
#: What runs that have begun may note before they fail.
NOTES = ("is the outer rule of", "mpidl: durations: ", ": no checkpoint yet, starting from the beginning")


class Outcome(NamedTuple):
    """How a case ended.

    Attributes
    ----------
    arguments : list of str
        The command.
    problem : str
        What is wrong with its end; empty if nothing is.
    code : int or None
        Exit code; None where there was none in time.
    stderr : str
    """

    arguments: list[str]
    problem: str
    code: int | None
    stderr: str


def judge(arguments: list[str], code: int | None, stderr: str, left: bool) -> Outcome:
    """Return the outcome of a command; `left` tells whether it has left a run's directory."""
    lines = [line for line in stderr.splitlines() if line]
    told = [line for line in lines if line.startswith("mpidl: ") and not any(note in line for note in NOTES)]
    problem = ""
    if code is None and not left:
        problem = "hang"
    elif "Traceback" in stderr:
        problem = "traceback"
    elif "MPIDL_DEBUG=1 shows where" in stderr:
        problem = "internal error"
    elif code not in (None, 0, 1, 2, 75):
        problem = f"exit code {code}"
    elif code in (1, 2) and len(told) != 1:
        problem = f"{len(told)} lines for people"
    elif max(Counter(told).values(), default=0) > 1:
        problem = "a line twice"
    elif any("Warning: " in line for line in lines):
        problem = "a warning of a library"
    elif code == 2 and left:
        problem = "a directory of a refused run"
    elif not all(line.isprintable() and len(line) < 1000 for line in told):
        problem = "a line that rules the terminal"
    return Outcome(arguments, problem, code, stderr)


def attempt(case: Callable[[Path], list[str]], place: Path) -> Outcome:
    """Run a case in this process, in an empty directory."""
    before = Path.cwd()
    place.mkdir(parents=True)
    arguments = case(place)
    stdout, stderr, code = io.StringIO(), io.StringIO(), None
    os.chdir(place)
    alarm = signal.signal(signal.SIGALRM, _time_is_up)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr), contextlib.suppress(_TimeIsUp):
            code = cli.main(arguments)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        stderr.write(f"Traceback: {type(error).__name__}: {error}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)
        os.chdir(before)
    outcome = judge(arguments, code, stderr.getvalue(), (place / "runs").exists())
    if not outcome.problem:
        shutil.rmtree(place)
    return outcome


class _TimeIsUp(BaseException):
    """Not an Exception, which a command would tell as its own."""


def _time_is_up(number: int, frame: Any) -> None:
    raise _TimeIsUp
