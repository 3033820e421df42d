"""What an engine trains: a job's parts without its files and reports."""

from __future__ import annotations

from mpidl.engines.training import Training
from mpidl.job.job import Job
from mpidl.job.slices import own_fragments, own_segments, own_statistics


def training_of(job: Job) -> Training:
    """Return what an engine trains, with the model that computes; see `mpidl.job.place`."""
    return Training(
        job.algorithm, job.model, job.dataset.train, job.schedule, job.rate_at, own_statistics(job), own_segments(job),
        job.original.buffers, own_fragments(job),
    )  # fmt: skip
