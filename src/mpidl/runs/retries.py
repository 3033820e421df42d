"""Starting a job again that has failed: ``--retries``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from mpidl.launch.fault_points import VARIABLE
from mpidl.launch.forwarding import Ended
from mpidl.launch.output import interject
from mpidl.report.recorder import record_event
from mpidl.storage.checkpoints import steps


class Retries:
    """Decides whether a job starts again that has failed, and with which arguments.

    A training goes on in its run's directory, from the newest checkpoint; a script finds its runs itself.

    Parameters
    ----------
    most : int
        Number of restarts in a row without a new checkpoint; one that is new gives all of them back.
    arguments : sequence of str
        Those of the job's first start.
    """

    def __init__(self, most: int, arguments: Sequence[str]) -> None:
        self._most, self._arguments = most, list(arguments)
        self._attempt = 1
        self._reached: dict[Path, int | None] = {}
        self._run: Path | None = None

    def after(self, ended: Ended) -> list[str] | None:
        """Return the arguments of the job's next start, and say so in a line; None if it is over."""
        if not ended.failed:
            return None
        # A job that fails before it has gone on with its run leaves the run to the next.
        self._run = run = ended.runs[-1] if ended.runs else self._run
        reached = self._reached | {each: next(reversed(steps(each / "checkpoints")), None) for each in ended.runs}
        if self._reached and reached != self._reached:
            self._attempt = 1
        self._reached = reached
        step = None if run is None else reached[run]
        if run is not None and (ended.line or ended.cause.rank is not None):
            record_event(run, "failure", ended.cause.rank, ended.cause.role, cause=ended.cause.line)
        self._attempt += 1
        if self._attempt > self._most + 1:
            interject(f"{self._most + 1} attempts without a new checkpoint have failed")
            return None
        os.environ.pop(VARIABLE, None)  # A death at a point is over.
        resumes = "starts from the beginning" if run is None or step is None else f"resumes from step {step} of {run}"
        interject(f"{ended.cause.line}; attempt {self._attempt} of {self._most + 1} {resumes}")
        if run is not None:
            attempt = {"attempt": self._attempt, "attempts": self._most + 1, "step": step}
            record_event(run, "recovery", 0, "coordinator", what="restart", **attempt)
        return self._continued(run)

    def _continued(self, run: Path | None) -> list[str]:
        """Return the arguments with which a training goes on in its run's directory."""
        if run is None or self._arguments[0] != "train":
            return self._arguments
        return [*(each for each in self._arguments if not each.startswith("--resume=")), f"--resume={run}"]
