"""A job's checkpoints: one is completed, and the best is named."""

from __future__ import annotations

from collections.abc import Sequence

from mpidl.job.job import Job
from mpidl.storage.checkpoints import Best, prune, write_best
from mpidl.storage.files import scratch
from mpidl.storage.position import Position
from mpidl.storage.writer import save_index
from mpidl.version import VERSION


def complete_checkpoint(job: Job, order: int, position: Position, shards: int, files: Sequence[str] = ()) -> None:
    """Complete a checkpoint, whose other files are on disk, and remove those not to be kept.

    Parameters
    ----------
    job : Job
    order : int
        Ordinal of the order to save it.
    position : Position
    shards : int
        Number of shards.
    files : sequence of str
        Names of the files beside those of the shards.
    """
    directory = scratch(job.checkpoints, order)
    model = job.original
    save_index(
        directory, job.layout, shards, position, job.config.to_toml(), VERSION, job.described, files,
        model.constants(), model.aliases,
    )  # fmt: skip
    best = None if job.best is None else job.best.step
    prune(job.checkpoints, job.config.checkpoint.keep, position.step, best)


def keep_best(job: Job, best: Best) -> None:
    """Name the best checkpoint, which is on disk: it stays until another is better.

    Raises
    ------
    MpidlError
        The file can't be written.
    """
    write_best(job.directory, best)
    job.best = best
