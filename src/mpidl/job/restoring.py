"""Restoring a job from a checkpoint: its data, its model and its replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from mpidl.job.checks import check_data, check_model
from mpidl.job.job import Job
from mpidl.job.placed import PlacedJob
from mpidl.parameters import Range
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.position import ReplicaPosition


def identify(job: Job, data: Mapping[str, str]) -> Job:
    """Return a job with the description of its data (see `mpidl.job.description`), which checkpoints will have.

    Raises
    ------
    UsageError
        The checkpoint is of other data.
    """
    if job.checkpoint is not None:
        check_data(job.checkpoint, data)
    return replace(job, described=dict(data))


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


def load_buffers(placed: PlacedJob, number: int) -> None:
    """Give a job's model the buffers of replica `number` in the checkpoint, if there is one.

    Where the replicas begin anew, they are those of the first replica.

    Raises
    ------
    MpidlError
        A file of the checkpoint can't be read.
    """
    if (checkpoint := placed.job.checkpoint) is not None:
        _load_buffers(placed.job, checkpoint.buffers(number if placed.replicas_resume else 0))


def _load_buffers(job: Job, buffers: Mapping[str, np.ndarray]) -> None:
    if buffers:
        job.original.load_buffers(buffers)


def replica_position(placed: PlacedJob, number: int) -> ReplicaPosition | None:
    """Return where a replica goes on; None if it begins at the parameters."""
    return placed.position.replicas[number] if placed.replicas_resume else None
