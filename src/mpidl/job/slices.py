"""A job over ranks: what servers, and the ranks of a replica, have of its flat vectors."""

from __future__ import annotations

from mpidl.job.job import Job
from mpidl.parameters import Held, Range, fragments, held_by_replicas, held_by_servers, shards
from mpidl.rules.segments import Segment


def shards_of(job: Job, holders: int) -> list[Range]:
    """Return the parts of the parameters that servers hold or, without servers, workers of whole models.

    Raises
    ------
    UsageError
        There are too many of them.
    """
    return shards(job.layout.size, holders, _block(job))


def held_shards(job: Job, servers: int) -> list[Held]:
    """Return the shards of so many servers or, if that is 0, of the replicas.

    Raises
    ------
    UsageError
        There are too many of them.
    """
    if servers:
        return held_by_servers(job.slices, servers, _block(job))
    count = job.algorithm.streamed
    parts = [fragments(job.layout, own, count) for own in job.slices] if count else None
    return held_by_replicas(job.slices, job.replicas, parts)


def _block(job: Job) -> int:
    """Return the number of elements of which a shard has whole multiples: a block of what is sent."""
    encodings = (job.algorithm.encoding(), job.algorithm.fetch_encoding())
    return max(1 if encoding is None else encoding.block for encoding in encodings)


def own_fragments(job: Job) -> list[Range]:
    """Return the fragments of this rank's slice of the vectors; none where the algorithm reduces it whole."""
    count = job.algorithm.streamed
    return fragments(job.layout, job.slice, count) if count else []


def own_segments(job: Job) -> list[Segment]:
    """Return the segments of this rank's slice of the vectors."""
    found = ((each, each.range.intersect(job.slice)) for each in job.segments)
    return [each._replace(range=own.shift(-job.slice.start)) for each, own in found if own is not None]


def own_statistics(job: Job) -> list[Range]:
    """Return the ranges of this rank's slice of the vectors that hold statistics."""
    found = (each.intersect(job.slice) for each in job.statistics)
    return [own.shift(-job.slice.start) for own in found if own is not None]
