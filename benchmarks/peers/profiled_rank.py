"""A rank that trains as ``mpidl train`` does, and writes the processor time of its thread by phase.

    mpirun -n N python profiled_rank.py DIRECTORY JOB.toml

A phase's time is that of its functions without that of other phases within them.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from mpidl.launch import fault_points
from mpidl.launch.environment import world

#: The functions of each phase: modules, classes and names.
PHASES = {
    "gradient": ["mpidl.engines.mpi.engine MpiEngine _gradient"],
    "push": [f"mpidl.engines.mpi.connection Connection {name}" for name in ("begin", "send")],
    "fetch": [
        f"mpidl.engines.mpi.connection Connection {name}"
        for name in ("start_fetch", "finish_fetch", "start_behind_push", "finish_behind_push")
    ],
    "waiting": ["mpidl.rma.backoff Backoff pause", "mpidl.rma.backoff Backoff progress"],
    "rows of tables": [f"mpidl.tables.table Table {name}" for name in ("update", "read")],
    "serving": ["mpidl.roles.served ServedShard serve"],
    "rule": ["mpidl.rules.rule Rule update"],
    "status": ["mpidl.rma.reports StatusReports post", "mpidl.roles.coordinator Coordinator _look"],
}
seconds: Counter[str] = Counter()
gradients = 0
#: The phases that have begun, and when time was counted last.
open_phases, counted = ["rest"], 0.0


def count() -> None:
    """Count the time since the last call for the innermost phase."""
    global counted
    now = time.thread_time()
    seconds[open_phases[-1]] += now - counted
    counted = now


def timed(function: Callable[..., Any], phase: str) -> Callable[..., Any]:
    """Return a function that counts its time for a phase."""

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        count()
        open_phases.append(phase)
        try:
            return function(*arguments, **keywords)
        finally:
            count()
            open_phases.pop()

    return call


def pass_point(point: str) -> None:
    """Time the phases from the beginning of training to its end."""
    global gradients
    if point == "job-built":
        for phase, functions in PHASES.items():
            for each in functions:
                module, owner, name = each.split()
                cls = getattr(importlib.import_module(module), owner)
                setattr(cls, name, timed(getattr(cls, name), phase))
    elif point == "training-begins":
        count()
        seconds.clear()
    elif point == "gradient-computed":
        gradients += 1
    elif point == "exit-ordered":
        count()
        found = {"seconds": seconds, "gradients": gradients}
        Path(directory, f"{rank}.json").write_text(json.dumps(found))


rank = world().rank
fault_points.fault_point = pass_point
_, directory, job = sys.argv
sys.argv = ["mpidl", "train", job]

from mpidl.__main__ import main  # noqa: E402 (after the point has been replaced)

main()
