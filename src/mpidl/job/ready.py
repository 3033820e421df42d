"""A job that is ready to train on this rank. The last of three stages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mpidl.job.job import Job
from mpidl.job.local_model import LocalModel
from mpidl.job.placed import PlacedJob
from mpidl.metrics.figures import Figures
from mpidl.storage.files import is_interim, scratch
from mpidl.storage.writer import Index


class Interim(Protocol):
    """Where interim checkpoints are kept, one of which is due `every` seconds after the checkpoint before."""

    every: float

    def scratch(self, order: int) -> Path:
        """Return the directory in which this rank writes its files for an order."""
        ...

    def complete(self, order: int, index: Index) -> bool:
        """Complete the checkpoint of an order, whose other files are written, in the place of the one before.

        Return whether it is complete; a line on stderr says why if it isn't.
        """
        ...

    def discard(self) -> None:
        """Remove what is left: the run is over."""
        ...


@dataclass(frozen=True, eq=False)
class ReadyJob:
    """A placed job with this rank's model, the run's directory, and the token of its unfinished checkpoints.

    `interim` is where interim checkpoints are kept; None for a run that makes none.
    """

    placed: PlacedJob
    local: LocalModel
    figures: Figures
    directory: Path
    token: str = ""
    interim: Interim | None = None

    @property
    def job(self) -> Job:
        return self.placed.job

    @property
    def checkpoints(self) -> Path:
        """Directory of the run's checkpoints."""
        return self.directory / "checkpoints"

    def scratch(self, order: int) -> Path:
        """Return the directory in which the checkpoint of an order is written."""
        if self.interim is not None and is_interim(order):
            return self.interim.scratch(order)
        return scratch(self.checkpoints, order, self.token)
