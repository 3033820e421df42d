"""A job that goes on from a checkpoint: what of it the data, the model, replicas and the run's figures go on with."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mpidl.job.checks import check_data, check_model
from mpidl.job.job import Job
from mpidl.parameters import Range
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.checkpoints import Best, read_best
from mpidl.storage.position import ReplicaPosition


def identify(job: Job, data: Mapping[str, str]) -> None:
    """Note what a job's data are, as `mpidl.job.description` says it; checkpoints will have that.

    Raises
    ------
    UsageError
        The checkpoint's were others.
    """
    job.described = dict(data)
    if job.checkpoint is not None:
        check_data(job.checkpoint, job.described)


def restore(job: Job, checkpoint: Checkpoint) -> None:
    """Give a job's model the parameters of a checkpoint, its constants, and the buffers of its first replica.

    Raises
    ------
    UsageError
        It is of another model.
    MpidlError
        A file can't be read.
    """
    check_model(checkpoint, job.original)
    layout = job.original.layout
    job.original.parameters[:] = checkpoint.read("parameters", Range(0, layout.size), layout)
    job.original.load_constants(checkpoint.constants())
    _load_buffers(job, checkpoint.buffers())


def load_buffers(job: Job, number: int) -> None:
    """Give a job's model the buffers with which replica `number` goes on, if the run is resumed.

    They are those that the replica had or, where the replicas begin anew, those of the first.

    Raises
    ------
    MpidlError
        A file of the checkpoint can't be read.
    """
    if job.checkpoint is not None:
        _load_buffers(job, job.checkpoint.buffers(number if job.replicas_resume else 0))


def _load_buffers(job: Job, buffers: Mapping[str, np.ndarray]) -> None:
    if buffers:
        job.original.load_buffers(buffers)


def replica_position(job: Job, number: int) -> ReplicaPosition | None:
    """Return where a replica goes on; None if it begins at the parameters."""
    return job.position.replicas[number] if job.replicas_resume else None


def find_best(job: Job) -> Best | None:
    """Return the best checkpoint of a run that goes on, if it is by the same figure and before the run's position.

    Raises
    ------
    MpidlError
        What names it can't be read.
    """
    if job.checkpoint is not None and job.continues and job.goal.keeps_best:
        best = read_best(job.directory)
        if best is not None and best.figure == job.goal.figure and best.step <= job.checkpoint.position.step:
            job.best = best
    return job.best
