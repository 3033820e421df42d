"""Where a run's figures come from: what its summary says of program, command and machines."""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mpidl.launch import environment, marks
from mpidl.version import VERSION


def origin(hosts: Sequence[str], mpi: str | None, seed: int, virtual: bool = False) -> dict[str, Any]:
    """Return what a summary says of where its figures come from.

    Parameters
    ----------
    hosts : sequence of str
        The host of each rank.
    mpi : str or None
        Name and version of the MPI library, if there is one.
    seed : int
    virtual : bool
        Whether the run was on a virtual cluster, so that its times and rates are predictions.
    """
    return {
        "virtual": virtual,
        "version": VERSION,
        "command": os.environ.get(marks.COMMAND) or command(),
        "hosts": dict(Counter(hosts)),
        "mpi": mpi,
        "job_id": environment.job(),
        "seed": seed,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def command() -> str:
    """Return the command line of this process, as a person would type it."""
    program = Path(sys.argv[0])
    return shlex.join(["mpidl" if program.name in ("mpidl", "__main__.py") else str(program), *sys.argv[1:]])
