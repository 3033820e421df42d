"""The command ``mpidl``: its exit codes and error lines."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

from mpidl.cli import commands, planning, seeing
from mpidl.cli.arguments import parse
from mpidl.errors import MpidlError, UsageError, as_line
from mpidl.launch import environment, signals
from mpidl.launch.output import attempt, say, show_traceback
from mpidl.runs.process import end_job, exits

__all__ = ["main"]

#: Commands that save when a signal asks them to stop.
SAVING = (commands.run_train, commands.run_script, planning.run_simulate)
#: Commands of one process.
ALONE = (commands.run_export, planning.run_simulate, planning.run_plan, seeing.run_report, seeing.run_top)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv`, by default the process's arguments, and return its exit code.

    It is 0 if the command is done, 1 if it failed, 2 for wrong arguments or configuration, and 75 if it was stopped by
    a signal after saving.
    """
    command: Callable[[argparse.Namespace], int] | None = None
    try:
        arguments = parse(argv)
        command = arguments.command
        if command in ALONE and environment.world().size > 1:
            raise UsageError(f"{arguments.words[0]}: runs in one process, without mpirun")
        if command not in SAVING:
            signals.release()
        elif environment.world().size == 1:
            # Before a run begins there is nothing to save, and Ctrl-C ends the process.
            signal.signal(signal.SIGINT, _break_off)
            signals.release({signal.SIGINT})
        return exits(command(arguments))
    except KeyboardInterrupt:
        if _world().rank == 0:
            say("interrupted")
        return signals.STOPPED if command in SAVING else 1
    except Exception as error:
        return _tell(error)


def _tell(error: Exception) -> int:
    """Report an error, and return the exit code. A `MpidlError` occurs on all ranks, any other only on this one."""
    rank, size, _ = _world()
    line, common = as_line(error), isinstance(error, MpidlError)
    if os.environ.get("MPIDL_DEBUG") and not (common and size > 1):
        attempt(lambda: show_traceback(line))
    if rank == 0 or not common:
        attempt(lambda: say(str(line) if common or size == 1 else f"rank {rank}: {line}"))
    if size > 1 and not common:
        end_job(line.exit_code)
    return line.exit_code


def _break_off(number: int, frame: Any) -> None:
    """End the process at once, because a module that is being imported might swallow an exception."""
    say("interrupted")
    os._exit(signals.STOPPED)


def _world() -> environment.LauncherRank:
    """Return the world, or that of a single process if the launcher's variables are invalid, which an error reports."""
    try:
        return environment.world()
    except UsageError:
        return environment.LauncherRank(0, 1)
