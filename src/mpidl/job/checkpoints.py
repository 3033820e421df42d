"""The checkpoints of a run on disk."""

from __future__ import annotations

from collections.abc import Sequence

from mpidl.job.ready import ReadyJob
from mpidl.storage.checkpoints import prune, read_best, write_best
from mpidl.storage.files import scratch
from mpidl.storage.position import Best, Position
from mpidl.storage.writer import save_index
from mpidl.version import VERSION


class Checkpoints:
    """The checkpoints of a run: each is completed when its files are on disk, and the best is named.

    Parameters
    ----------
    ready : ReadyJob

    Attributes
    ----------
    best : Best or None
        The best checkpoint. A run that goes on keeps its own, unless that is of another figure or of a later step than
        it resumes from.

    Raises
    ------
    MpidlError
        The file that names the best can't be read.
    """

    def __init__(self, ready: ReadyJob) -> None:
        self._ready = ready
        self.best: Best | None = None
        job, goal = ready.job, ready.job.goal
        if job.checkpoint is not None and job.continues and goal.keeps_best:
            best = read_best(ready.directory)
            if best is not None and best.figure == goal.figure and best.step <= job.checkpoint.position.step:
                self.best = best

    def complete(self, order: int, position: Position, shards: int, files: Sequence[str] = ()) -> None:
        """Complete a checkpoint, whose other files are on disk, and remove those not to be kept.

        Parameters
        ----------
        order : int
            Ordinal of the order to save it.
        position : Position
        shards : int
            Number of shards.
        files : sequence of str
            Names of the files beside those of the shards.
        """
        ready, job = self._ready, self._ready.job
        save_index(
            scratch(ready.checkpoints, order), ready.placed.layout, shards, position, job.config.to_toml(), VERSION,
            job.described, files, job.original.constants(), job.original.aliases,
        )  # fmt: skip
        best = None if self.best is None else self.best.step
        prune(ready.checkpoints, job.config.checkpoint.keep, position.step, best)

    def keep(self, best: Best) -> None:
        """Name the best checkpoint, which is on disk: it stays until another is better.

        Raises
        ------
        MpidlError
            The file can't be written.
        """
        write_best(self._ready.directory, best)
        self.best = best
