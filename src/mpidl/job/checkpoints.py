"""The checkpoints of a run on disk: writing them, and what a resumed run takes from one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf

from mpidl.errors import MpidlError, outcome
from mpidl.job.checks import check_data, check_model
from mpidl.job.job import Job
from mpidl.job.notes import notes_on_digests
from mpidl.job.placed import PlacedJob
from mpidl.job.ready import ReadyJob
from mpidl.launch.output import say
from mpidl.nn.model import CompleteModel
from mpidl.parameters import Range
from mpidl.storage.checkpoint import BUFFERS, CONSTANTS, DATA, STATE, Checkpoint
from mpidl.storage.checkpoints import discard, prune, read_best, write_best
from mpidl.storage.files import is_interim
from mpidl.storage.position import Best, Position, ReplicaPosition
from mpidl.storage.writer import CheckpointIndex, save_index
from mpidl.version import VERSION


class Checkpoints:
    """The checkpoints of a run: each is completed when its files are on disk, and the best is named.

    A resumed run keeps its `best`, unless that is of another figure or of a later step than the run resumes from. A
    line on stderr says if the file that names the best can't be read.
    """

    def __init__(self, ready: ReadyJob) -> None:
        self._ready = ready
        self.best: Best | None = None
        job, goal = ready.job, ready.job.goal
        if job.checkpoint is not None and job.continues and goal.keeps_best:
            best = outcome(partial(read_best, ready.directory))
            if isinstance(best, MpidlError):
                say(f"{best}; continuing without the best checkpoint so far")
            elif best is not None and best.figure == goal.figure and best.step <= job.checkpoint.position.step:
                self.best = best

    @property
    def interim(self) -> float:
        """Seconds after which an interim checkpoint is due."""
        return inf if self._ready.interim is None else self._ready.interim.every

    def complete(self, order: int, position: Position, shards: int, files: Sequence[str] = ()) -> bool:
        """Complete a checkpoint, whose other files are written, and remove those not to be kept or given up before.

        `order` is the ordinal of the order to save it, `shards` the number of shards, and `files` the names of the
        other files. Return whether it is complete, which only an interim one may not be.
        """
        ready, job = self._ready, self._ready.job
        index = CheckpointIndex(
            ready.placed.layout, shards, position, job.config.to_toml(), VERSION, job.described, files,
            job.original.constants(), job.original.aliases, job.original.tables,
        )  # fmt: skip
        if ready.interim is not None and is_interim(order):
            return ready.interim.complete(order, index)
        save_index(ready.scratch(order), index)
        best = None if self.best is None else self.best.step
        prune(ready.checkpoints, job.config.checkpoint.keep, position.step, best)
        discard(ready.checkpoints, ready.token, order)
        return True

    def is_complete(self, order: int, step: int) -> bool:
        """Return whether the checkpoint of an order, which was being completed, has got its name."""
        if is_interim(order):
            return False  # Another one is soon due.
        return not self._ready.scratch(order).exists() and (self._ready.checkpoints / str(step)).exists()

    def keep(self, best: Best) -> None:
        """Name the best checkpoint, which is on disk: it stays until another is better.

        Raise MpidlError if the file can't be written.
        """
        write_best(self._ready.directory, best)
        self.best = best


def identify(job: Job, data: Mapping[str, str]) -> Job:
    """Return a job with the description of its data (see `mpidl.job.checks`), which checkpoints will have.

    Raise UsageError if the checkpoint is of other data.
    """
    if job.checkpoint is not None:
        check_data(job.checkpoint, data)
    return replace(job, described=dict(data), notes=[*job.notes, *notes_on_digests(data)])


def restore(job: Job, checkpoint: Checkpoint) -> None:
    """Give a job's model the parameters of a checkpoint, its constants, and what its first replica has kept.

    Raise UsageError if it is of another model, and MpidlError if a file can't be read.
    """
    check_model(checkpoint, job.original)
    layout = job.original.layout
    job.original.parameters[:] = checkpoint.read(checkpoint.trained, Range(0, layout.size), layout)
    job.original.load_constants(checkpoint.arrays(CONSTANTS))
    load_saved(job.original, checkpoint, 0)


def load_kept(placed: PlacedJob, model: CompleteModel, number: int) -> None:
    """Give a rank's part of a job's model what replica `number` has kept in the checkpoint, if there is one.

    If the replicas start from scratch, it is what the first replica has kept. Raise MpidlError if a file of the
    checkpoint can't be read.
    """
    if (checkpoint := placed.job.checkpoint) is not None:
        load_saved(model, checkpoint, number if placed.replicas_resume else 0)


def begin_data(placed: PlacedJob, number: int) -> None:
    """Give the training data the state that replica `number` has kept, or that before anything was read of them."""
    job, kept = placed.job, placed.job.dataset.kept
    if kept is None:
        return
    number = number if placed.replicas_resume else 0
    kept.load((job.checkpoint and job.checkpoint.kept_by(number, DATA)) or kept.first)


def load_saved(model: CompleteModel, checkpoint: Checkpoint, number: int) -> None:
    """Give a model what replica `number`, or the first one that was saved, has kept in a checkpoint.

    Raise MpidlError if a file of the checkpoint can't be read.
    """
    if buffers := checkpoint.kept_by(number, BUFFERS):
        model.load_buffers(buffers)
    if state := checkpoint.kept_by(number, STATE):
        model.load_state(state)


def replica_position(placed: PlacedJob, number: int) -> ReplicaPosition | None:
    """Return where a replica resumes; None if it starts from the parameters alone."""
    return placed.position.replicas[number] if placed.replicas_resume else None
