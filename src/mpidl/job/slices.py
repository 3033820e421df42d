"""The parts of a job's flat vectors that servers and the ranks of a replica hold."""

from __future__ import annotations

from mpidl.job.job import Job
from mpidl.job.placed import PlacedJob
from mpidl.parameters import Held, Range, fragments, held_by_replicas, held_by_servers, shards
from mpidl.rules.segments import Segment


def shards_of(job: Job, holders: int) -> list[Range]:
    """Return the parts of the parameters of an uncut model that servers or, without servers, workers hold.

    Raises
    ------
    UsageError
        There are too many of them.
    """
    return shards(job.original.layout.size, holders, _block(job))


def held_shards(placed: PlacedJob, servers: int) -> list[Held]:
    """Return the shards of the servers or, if there are none, of the replicas.

    Raises
    ------
    UsageError
        There are too many of them.
    """
    if servers:
        return held_by_servers(placed.slices, servers, _block(placed.job))
    count = placed.job.algorithm.streamed
    parts = [fragments(placed.layout, own, count) for own in placed.slices] if count else None
    return held_by_replicas(placed.slices, placed.replicas, parts)


def _block(job: Job) -> int:
    """Return the number of elements of which a shard has whole multiples: a block of what is sent."""
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


def own_statistics(placed: PlacedJob, own: Range) -> list[Range]:
    """Return the ranges of a rank's slice `own` that hold statistics, counted from its beginning."""
    found = (each.intersect(own) for each in placed.statistics)
    return [part.shift(-own.start) for part in found if part is not None]
