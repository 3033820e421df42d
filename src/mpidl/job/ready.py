"""A job that is ready to train on this rank. The last of three stages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mpidl.job.job import Job
from mpidl.job.local_model import LocalModel
from mpidl.job.placed import PlacedJob
from mpidl.metrics.figures import Figures


@dataclass(frozen=True, eq=False)
class ReadyJob:
    """A placed job with this rank's model and the run's directory."""

    placed: PlacedJob
    local: LocalModel
    figures: Figures
    directory: Path

    @property
    def job(self) -> Job:
        return self.placed.job

    @property
    def checkpoints(self) -> Path:
        """Directory of the run's checkpoints."""
        return self.directory / "checkpoints"
