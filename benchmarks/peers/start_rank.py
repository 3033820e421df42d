"""A rank that trains, or only imports libraries, and writes the processor time that it needed before."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from mpidl.launch import fault_points
from mpidl.launch.environment import world

JOB = Path(__file__).parents[2] / "jobs" / "digits.toml"
what, directory = sys.argv[1:]
rank = world().rank
found: dict[str, Any] = {"process": os.getpid()}


def note(point: str) -> None:
    """Note the time at the points of a run at which its job is built, and at which its training begins."""
    if point in ("job-built", "training-begins"):
        found[f"{point.replace('-', ' ')} (s)"] = time.process_time()
    if point == "training-begins":
        Path(directory, f"{rank}.json").write_text(json.dumps(found))


if what == "import":
    import numpy  # noqa: F401 (is measured)

    if rank:
        import numba  # noqa: F401
    from mpi4py import MPI  # noqa: F401

    note("training-begins")
else:
    fault_points.fault_point = note
    from mpidl.__main__ import main

    sys.argv = ["mpidl", "train", str(JOB), "--set", "run.steps=4", "--set", f"run.dir={directory}"]
    main()
