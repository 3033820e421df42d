"""From a job to its shards: their first values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mpidl.job.job import Job
from mpidl.parameters import Range
from mpidl.shards.on_device import ShardOnDevice
from mpidl.shards.shard import Shard


def fill(
    job: Job,
    range: Range,
    parameters: np.ndarray,
    chunk: int,
    state: Sequence[np.ndarray] | None = None,
    xp: Any = np,
) -> Shard:
    """Return a shard with the first values of its vectors: those of the job's checkpoint, or else the initial ones.

    Parameters
    ----------
    job : Job
    range : Range
        The shard's range of the flat parameter vector.
    parameters : array, shape (range.size,)
        Memory for the parameters; overwritten.
    chunk : int
        Number of elements of a chunk.
    state : sequence of arrays, optional
        Memory for the vectors of `Job.states`, in their order; overwritten. Allocated if not given.
    xp
        NumPy, or CuPy for a shard on the device, which publishes its parameters in `parameters`.

    Raises
    ------
    MpidlError
        The checkpoint is damaged.
    """
    if state is None:
        state = [np.empty_like(parameters) for _ in job.states]
    vectors, clock = dict(zip(job.states, state, strict=True)), fill_parameters(job, range, parameters)
    for name, vector in vectors.items():
        vector.fill(0)
        if job.checkpoint is not None and job.resumes:
            vector[:] = job.checkpoint.read(f"rule/{name}", range, job.layout)
    policy = job.algorithm.shard_policy(job.replicas)
    rule = job.scheduled_rule
    if xp is np:
        shard = Shard(range, parameters, rule, policy, chunk, state=vectors, clock=clock)
    else:
        shard = ShardOnDevice(range, parameters, rule, policy, chunk, xp=xp, state=vectors, clock=clock)
    if job.checkpoint is not None and job.same_algorithm:
        _load(shard, job.checkpoint.shard_state(range, job.layout), job.replicas, job.replicas_resume)
    return shard


def fill_parameters(job: Job, range: Range, parameters: np.ndarray) -> int:
    """Write the first values of a range of the parameters, shape (range.size,); return their shard's first clock.

    Raises
    ------
    MpidlError
        The checkpoint is damaged.
    """
    if job.checkpoint is None:
        parameters[:] = job.initial(range)
        return 0
    parameters[:] = job.checkpoint.read("parameters", range, job.layout)
    return job.checkpoint.clock(range, job.layout)


def _load(shard: Shard, saved: Mapping[str, np.ndarray], replicas: int, same_workers: bool) -> None:
    """Let a shard go on where those of a checkpoint were, unless an earlier version saved their vectors only.

    `same_workers` tells whether the replicas go on where those of the checkpoint were, too, or begin anew.
    """
    if "clock" not in saved:
        return
    anew = ("staleness/", "pushes", "dropped")  # Figures count from the resume.
    kept = {name: values for name, values in saved.items() if not name.startswith(anew)}
    fresh = {name: values for name, values in shard.state().items() if name.startswith(anew)}
    shard.load(kept | fresh)
    if same_workers:
        shard.policy.expect_all()
    else:
        for worker in range(replicas):
            shard.add_worker(worker)
