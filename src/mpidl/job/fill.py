"""From a job to its shards: their first values, and what they need compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpidl.job.job import Job
from mpidl.parameters import Range
from mpidl.rules import Sgd
from mpidl.shards.on_device import ShardOnDevice, rehearse
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
    vectors, clock = dict(zip(job.states, state, strict=True)), 0
    for vector in vectors.values():
        vector.fill(0)
    if job.checkpoint is None:
        parameters[:] = job.original.initial(range)
    else:
        parameters[:] = job.checkpoint.read("parameters", range)
        clock = job.checkpoint.clock(range)
        for name, vector in vectors.items() if job.resumes else ():
            vector[:] = job.checkpoint.read(f"rule/{name}", range)
    policy = job.algorithm.shard_policy(job.replicas)
    rule = job.scheduled_rule
    if xp is np:
        return Shard(range, parameters, rule, policy, chunk, state=vectors, clock=clock)
    return ShardOnDevice(range, parameters, rule, policy, chunk, xp=xp, state=vectors, clock=clock)


def warm(job: Job, xp: Any = np) -> None:
    """Compile what the job's shards need, or load it from the cache; `xp` is NumPy or CuPy, as for `fill`."""
    if xp is np:
        # Policies and a coordinator's operations add vectors by plain SGD.
        (Sgd() if job.rule is None else job.rule).warm(job.dtype)
    elif not job.algorithm.coordinated:  # `Vectors.rehearse` compiles a coordinator's operations.
        rehearse(xp, job.rule, job.algorithm.shard_policy(1), job.dtype)
