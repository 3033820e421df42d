"""From a job to its shards: their ranges, and their first values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mpidl.algorithms.coordination import matrices
from mpidl.errors import UsageError
from mpidl.job.job import Job
from mpidl.job.placed import PlacedJob
from mpidl.parameters import Held, Range, fragments, held_by_replicas, held_by_servers
from mpidl.partition.planner import balanced
from mpidl.rules.segments import Segment, unfrozen
from mpidl.rules.tensors import TensorRule
from mpidl.shards.on_device import ShardOnDevice
from mpidl.shards.scheduled_rule import AVERAGE
from mpidl.shards.shard import Shard
from mpidl.shards.state import PARAMETERS

#: Floating-point operations of matrix products in the time in which a scalar rule updates one parameter.
OPERATIONS = 150.0


def fill(
    placed: PlacedJob,
    range: Range,
    parameters: np.ndarray,
    chunk: int,
    state: Sequence[np.ndarray] | None = None,
    xp: Any = np,
) -> Shard:
    """Return a shard with the first values of its vectors: those of the job's checkpoint, or else the initial ones.

    `parameters`, of shape (range.size,), and `state`, the vectors of `Job.states` (allocated if not given), are
    overwritten. `chunk` is the number of elements of a chunk. `xp` is NumPy, or CuPy for a shard on the device, which
    publishes its parameters in `parameters`. Raise MpidlError if the checkpoint is damaged.
    """
    job = placed.job
    if state is None:
        state = [np.empty_like(parameters) for _ in job.states]
    vectors, clock = dict(zip(job.states, state, strict=True)), fill_parameters(placed, range, parameters)
    for name, vector in vectors.items():
        vector.fill(0)
        if name == AVERAGE:
            vector[:] = parameters
        if job.checkpoint is not None and job.resumes and name in job.checkpoint.states:
            vector[:] = job.checkpoint.read(f"rule/{name}", range, placed.layout)
    vectors |= {name: _rows(placed, name, range) for name in matrices(job.algorithm)}
    policy = job.algorithm.shard_policy(placed.replicas)
    rule = placed.scheduled_rule
    if xp is np:
        shard = Shard(range, parameters, rule, policy, chunk, state=vectors, clock=clock)
    else:
        shard = ShardOnDevice(range, parameters, rule, policy, chunk, xp=xp, state=vectors, clock=clock)
    if job.checkpoint is not None and job.same_algorithm:
        _load(shard, job.checkpoint.shard_state(range, placed.layout), placed.replicas, placed.replicas_resume)
    return shard


def unfilled(placed: PlacedJob, range: Range, chunk: int) -> Shard:
    """Return a shard whose values lie elsewhere, for `Shard.adopt`; a chunk has `chunk` elements."""
    job = placed.job
    parameters, *state = (np.empty(range.size, job.dtype) for _ in (PARAMETERS, *job.states))
    vectors, policy = dict(zip(job.states, state, strict=True)), job.algorithm.shard_policy(placed.replicas)
    return Shard(range, parameters, placed.scheduled_rule, policy, chunk, state=vectors)


def fill_parameters(placed: PlacedJob, range: Range, parameters: np.ndarray) -> int:
    """Write the first values of a range of the parameters, shape (range.size,); return their shard's first clock.

    Raise MpidlError if the checkpoint is damaged.
    """
    checkpoint, layout = placed.job.checkpoint, placed.layout
    if checkpoint is None:
        parameters[:] = placed.job.first_values(range, layout)
        return 0
    parameters[:] = checkpoint.read("parameters", range, layout)
    return checkpoint.clock(range, layout)


def _rows(placed: PlacedJob, name: str, range: Range) -> np.ndarray:
    """Return a shard's rows of a matrix, 0 unless the algorithm resumes."""
    checkpoint = placed.job.checkpoint
    if checkpoint is None or not placed.job.resumes:
        return np.zeros((range.size, placed.layout.size))
    return checkpoint.rows(name, range, placed.layout)


def _load(shard: Shard, saved: Mapping[str, np.ndarray], replicas: int, same_workers: bool) -> None:
    """Restore a shard's clock and policy.

    `same_workers` tells whether the replicas, too, go on where those of the checkpoint were.
    """
    recounted = ("staleness/", "pushes", "dropped")  # Figures count from the resume.
    kept = {name: values for name, values in saved.items() if not name.startswith(recounted)}
    fresh = {name: values for name, values in shard.state().items() if name.startswith(recounted) or name not in saved}
    shard.load(kept | fresh)
    if same_workers:
        shard.policy.expect_all()
    else:
        for worker in range(replicas):
            shard.add_worker(worker)


def shards_of(placed: PlacedJob, holders: int) -> list[Range]:
    """Return the parts of the parameters of an uncut model that servers or, without servers, workers hold.

    Raise UsageError if there are too many of them.
    """
    if placed.scheduled_rule.matrices:
        return [each.range for each in _held_whole(placed, holders)]
    pieces = placed.job.original.pieces or [Range(0, placed.layout.size)]
    return [each.range for each in held_by_servers(pieces, holders, _block(placed.job))]


def held_shards(placed: PlacedJob, servers: int) -> list[Held]:
    """Return the shards of the servers or, if there are none, of the replicas.

    Raise UsageError if there are too many of them.
    """
    if placed.scheduled_rule.matrices:
        return _held_whole(placed, servers or placed.replicas)
    if servers and placed.job.original.pieces:
        found = held_by_servers(placed.job.original.pieces, servers, _block(placed.job))
        return [each._replace(partition=0) for each in found]
    if servers:
        return held_by_servers(placed.slices, servers, _block(placed.job))
    count = placed.job.algorithm.streamed
    parts = [fragments(placed.layout, own, count) for own in placed.slices] if count else None
    return held_by_replicas(placed.slices, placed.replicas, parts)


def _held_whole(placed: PlacedJob, holders: int) -> list[Held]:
    """Return the shards of a rule of whole tensors: consecutive tensors, so that the slowest update takes least time.

    Raise UsageError if there are more holders than tensors.
    """
    rule, matrices = placed.job.config.rule, placed.scheduled_rule.matrices
    assert isinstance(rule, TensorRule)
    costs = {each.range: rule.operations(*each.matrix.shape) for each in matrices if each.matrix is not None}
    tensors = [part.range for part in placed.layout]
    if holders > (count := len(tensors)):
        found = f"topology.servers: {holders}" if placed.job.config.servers else f"{holders} workers without servers"
        raise UsageError(f"{found} for {count} tensors, which {rule.name} needs whole, expected at most {count}")
    if placed.job.original.pieces:
        raise UsageError(f"server.rule: {rule.name}, but the model is a dict of modules, expected one module")
    runs = balanced([each.size + costs.get(each, 0.0) / OPERATIONS for each in tensors], holders)
    return [
        Held(Range(tensors[run.start].start, tensors[run.stop - 1].stop), holder) for holder, run in enumerate(runs)
    ]


def _block(job: Job) -> int:
    """Return the size of the blocks that are sent, in elements: a shard's is a multiple of it."""
    encodings = (job.algorithm.encoding(), job.algorithm.fetch_encoding())
    return max(1 if encoding is None else encoding.block for encoding in encodings)


def own_fragments(placed: PlacedJob, own: Range) -> list[Range]:
    """Return the fragments of a rank's slice `own`; none where the algorithm reduces it whole."""
    count = placed.job.algorithm.streamed
    return fragments(placed.layout, own, count) if count else []


def own_segments(placed: PlacedJob, own: Range) -> list[Segment]:
    """Return the segments of a rank's slice `own`, counted from its beginning."""
    found = ((each, each.range.intersect(own)) for each in placed.segments)
    return [each._replace(range=part.shift(-own.start)) for each, part in found if part is not None]


def own_trained(placed: PlacedJob, own: Range) -> list[Range]:
    """Return the ranges of a rank's slice `own` that are trained, counted from its beginning."""
    untrained = [each for each in own_segments(placed, own) if each.frozen]
    untrained += [Segment(each, frozen=True) for each in own_statistics(placed, own)]
    return [Range(each.start, each.stop) for each in unfrozen(sorted(untrained), Range(0, own.size))]


def own_statistics(placed: PlacedJob, own: Range) -> list[Range]:
    """Return the ranges of a rank's slice `own` that hold statistics, counted from its beginning."""
    found = (each.intersect(own) for each in placed.statistics)
    return [part.shift(-own.start) for part in found if part is not None]
