"""The commands that show runs: ``mpidl report`` and ``mpidl top``."""

from __future__ import annotations

import argparse
import gc
from pathlib import Path

from mpidl.errors import UsageError, escaped
from mpidl.extras import require
from mpidl.launch import environment
from mpidl.launch.output import deliver, say
from mpidl.paths import check_new


def run_report(arguments: argparse.Namespace) -> int:
    environment.prepare_libraries()
    # Of millions of values that a long run's records are, none refers to itself.
    gc.disable()
    try:
        return _write_timelines(arguments) if arguments.trace is not None else _draw(arguments)
    finally:
        gc.enable()


def _draw(arguments: argparse.Namespace) -> int:
    from mpidl import history, page

    runs = [history.open(each) for each in arguments.run_dirs]
    if arguments.to is not None:
        from mpidl.runs.replay import convert

        deliver("\n".join(escaped(str(each)) for each in convert(runs, arguments.to, arguments.output)))
        return 0
    file = arguments.output or (runs[0].directory if len(runs) == 1 else Path()) / "report.html"
    page.write(runs, file, arguments.force)
    for note in [f"{run.directory}: {note}" for run in runs for note in run.notes]:
        say(note)
    deliver(escaped(str(file)))
    return 0


def _write_timelines(arguments: argparse.Namespace) -> int:
    from mpidl import history, tracing
    from mpidl.tracing import chrome

    for option, value in (("-o", arguments.output), ("--to", arguments.to)):
        if value is not None:
            raise UsageError(f"--trace: names the only file that is written, leave {option} out")
    check_new(arguments.trace, arguments.force)
    runs = [history.open(each).directory for each in arguments.run_dirs]
    chrome.write({escaped(str(each)): tracing.read(each) for each in runs}, arguments.trace)
    deliver(escaped(str(arguments.trace)))
    return 0


def run_top(arguments: argparse.Namespace) -> int:
    require("rich", "top")
    from mpidl.top.screen import show
    from mpidl.top.watched import find

    show(find(arguments.run_dir))
    return 0
