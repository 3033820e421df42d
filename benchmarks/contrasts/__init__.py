"""Contrasts that papers have published, each reproduced on the virtual cluster: what `papers.py` runs.

Each file here is a contrast and has what `Contrast` says. Data are the embedded digits or synthetic, so that a clean
clone can run it.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from mpidl.config import from_dict
from mpidl.runs.simulate import simulate as on_virtual_cluster
from training import Job, Run, with_sections

#: A function without arguments, such as a `functools.partial` of one in a module: other processes call it.
Case = Callable[[], Any]


class Finding(NamedTuple):
    """What a paper says of something, what was seen here, and whether that agrees."""

    what: str
    paper: str
    here: str
    holds: bool


class Contrast(Protocol):
    """What the file of a contrast has: its docstring says what it reproduces, and how it differs from the paper."""

    #: Authors, year and what is reproduced: the title of the figure.
    TITLE: str

    def cases(self, quick: bool) -> dict[str, Case]:
        """Return the runs by name, or the smallest form of some of them, which take a fraction of a second."""

    def findings(self, runs: dict[str, Any]) -> list[Finding]:
        """Return the findings, given what the cases returned; some cases may be missing in the smallest form."""

    def draw(self, figure: Any, runs: dict[str, Any]) -> None:
        """Draw what was found, and the paper's numbers beside it, into a figure of Matplotlib."""


def digits(units: tuple[int, ...] = (64,), **sections: dict[str, Any]) -> Job:
    """Return a job on the embedded digits that trains dense layers, with further keys in its `sections`."""
    hidden = [{"type": "dense", "units": count, "activation": "relu"} for count in units]
    job: Job = {"data": {"source": "digits"}, "model": {"layer": [*hidden, {"type": "dense", "units": 10}]}}
    return with_sections(job, **sections)


def simulate(job: Job, replicas: int) -> Run:
    """Train on a virtual cluster in this process; return the summary, with the run's records as "records"."""
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stderr(io.StringIO()):
        summary = on_virtual_cluster(from_dict(with_sections(job, run={"dir": directory})), replicas)
        lines = (Path(summary["run_dir"]) / "metrics.jsonl").read_text().splitlines()
    return summary | {"records": [json.loads(line) for line in lines]}


def seconds_to(run: Run, accuracy: float) -> float | None:
    """Return the seconds of training until the test accuracy was reached; None if it never was."""
    found = (each["time"] for each in run["records"] if (each["test_accuracy"] or 0.0) >= accuracy)
    return next(found, None)
