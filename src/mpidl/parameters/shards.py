"""The division of the flat parameter vector into shards, and into fragments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise
from operator import attrgetter
from typing import NamedTuple

from mpidl.errors import UsageError
from mpidl.parameters.layout import Layout
from mpidl.parameters.ranges import Range, split


class Held(NamedTuple):
    """A shard and its holder.

    Attributes
    ----------
    holder : int
        Number of the server that holds it or, without servers, of the replica.
    partition : int
        The partition of a replica whose slice of the vector contains it, and which fetches it and pushes to it.
    """

    range: Range
    holder: int
    partition: int = 0


def shards(size: int, servers: int, block: int = 1) -> list[Range]:
    """Return each server's shard: consecutive ranges whose sizes differ by at most a block, regardless of layers.

    Shards begin at multiples of `block` parameters. Raise UsageError if there are more servers than parameters or
    blocks.
    """
    blocks = -(-size // block)
    if servers > blocks:
        together = "" if block == 1 else f" in blocks of {block}, which algorithm.wire encodes together"
        raise UsageError(f"topology.servers: {servers} for {size} parameters{together}, expected at most {blocks}")
    return [Range(part.start * block, min(part.stop * block, size)) for part in split(blocks, servers)]


def held_by_servers(slices: Sequence[Range], servers: int, block: int = 1) -> list[Held]:
    """Divide a vector evenly into the shards of servers, where each partition of a replica has a slice of the vector.

    The slices, some of which may be empty, are consecutive. A server with parts of several slices holds a shard for
    each, so that every shard belongs to one slice. Shards begin at multiples of `block` parameters, counted from the
    beginning of a slice. Raise UsageError if there are more servers than parameters or blocks.
    """
    stops = list(accumulate((-(-own.size // block) for own in slices), initial=0))
    if len(slices) == 1 or servers > stops[-1]:
        return [Held(range, holder) for holder, range in enumerate(shards(slices[-1].stop, servers, block))]
    found = []
    for partition, own in enumerate(slices):
        blocks = Range(stops[partition], stops[partition + 1])
        for holder, part in enumerate(split(stops[-1], servers)):
            if common := part.intersect(blocks):
                first, last = common.shift(-blocks.start)
                range = Range(own.start + first * block, min(own.start + last * block, own.stop))
                found.append(Held(range, holder, partition))
    return found


def held_by_replicas(
    slices: Sequence[Range], replicas: int, fragments: Sequence[Sequence[Range]] | None = None
) -> list[Held]:
    """Divide each partition's slice among the replicas, which hold the shards where there are no servers.

    Each slice may have several consecutive fragments, counted from its beginning, that are divided separately. Raise
    UsageError if a slice or a fragment has fewer parameters than there are replicas.
    """
    fragments = fragments or [[Range(0, own.size)] for own in slices]
    for partition, own in enumerate(slices):
        if own.size < replicas:
            raise UsageError(
                f"topology.partitions: {len(slices)}, but partition {partition} has {own.size} parameters to divide "
                f"among {replicas} replicas; expected fewer partitions or replicas"
            )
    for number, fragment in enumerate(each for parts in fragments for each in parts):
        if fragment.size < replicas:
            raise UsageError(
                f"algorithm.fragments: {len(fragments[0])}, but fragment {number % len(fragments[0])} has "
                f"{fragment.size} parameters to divide among {replicas} replicas; expected fewer fragments or replicas"
            )
    return [
        Held(part.shift(own.start + fragment.start), holder, partition)
        for partition, own in enumerate(slices)
        for fragment in fragments[partition]
        for holder, part in enumerate(split(fragment.size, replicas))
    ]


def fragments(layout: Layout, whole: Range, count: int) -> list[Range]:
    """Return consecutive fragments of about equal size, counted from the beginning of `whole`.

    They consist of whole layers or, if these are too few, of whole tensors; if these are too few as well, each has the
    same number of elements. The vector, or the slice of it that a rank has, is `whole`.
    """
    pieces = [piece for piece in layout if piece.range.intersect(whole)]
    for key in (lambda piece: piece.name.rpartition("/")[0], attrgetter("name")):
        starts = [max(next(group).start, whole.start) - whole.start for _, group in groupby(pieces, key)]
        if len(starts) >= count:
            return [Range(*pair) for pair in pairwise(_nearest(starts, whole.size, count))]
    return split(whole.size, count)


def _nearest(starts: Sequence[int], size: int, count: int) -> list[int]:
    """Return the bounds of fragments of nearly equal sizes that begin at some of `starts`."""
    bounds, first = [0], 1
    for number in range(1, count):
        # Leave starts for the following fragments.
        last = len(starts) - (count - number)
        nearest = min(range(first, last + 1), key=lambda index: abs(starts[index] * count - number * size))
        bounds.append(starts[nearest])
        first = nearest + 1
    return [*bounds, size]
