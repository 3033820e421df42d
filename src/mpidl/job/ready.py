"""A job that is ready to train on this rank. The last of three stages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mpidl.job.job import Job
from mpidl.job.local_model import LocalModel
from mpidl.job.placed import PlacedJob
from mpidl.metrics.figures import Figures
from mpidl.storage.files import scratch


@dataclass(frozen=True, eq=False)
class ReadyJob:
    """A placed job with this rank's model, the run's directory, and the token of its unfinished checkpoints."""

    placed: PlacedJob
    local: LocalModel
    figures: Figures
    directory: Path
    token: str = ""

    @property
    def job(self) -> Job:
        return self.placed.job

    @property
    def checkpoints(self) -> Path:
        """Directory of the run's checkpoints."""
        return self.directory / "checkpoints"

    def scratch(self, order: int) -> Path:
        """Return the directory in which the checkpoint of an order is written."""
        return scratch(self.checkpoints, order, self.token)
