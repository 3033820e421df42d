"""The division of the flat parameter vector into shards."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from mpidl.errors import UsageError
from mpidl.parameters.ranges import Range, split


class Held(NamedTuple):
    """A shard, and who holds it.

    Attributes
    ----------
    range : Range
    holder : int
        Number of the server that holds it or, without servers, of the replica.
    partition : int
        The partition of a replica to whose slice of the vector it belongs: who fetches it and pushes to it.
    """

    range: Range
    holder: int
    partition: int = 0


def shards(size: int, servers: int, block: int = 1) -> list[Range]:
    """Return each server's shard: consecutive ranges whose sizes differ by at most a block, regardless of layers.

    Parameters
    ----------
    size
        Number of parameters.
    servers
        Number of servers, at least one.
    block
        Number of parameters at whose multiples the shards begin.

    Raises
    ------
    UsageError
        If there are more servers than parameters, or than blocks.
    """
    blocks = -(-size // block)
    if servers > blocks:
        together = "" if block == 1 else f" in blocks of {block}, which algorithm.wire encodes together"
        raise UsageError(f"topology.servers: {servers} for {size} parameters{together}, expected at most {blocks}")
    return [Range(part.start * block, min(part.stop * block, size)) for part in split(blocks, servers)]


def held_by_servers(slices: Sequence[Range], servers: int, block: int = 1) -> list[Held]:
    """Return the shards of servers that divide a vector evenly, of which each partition of a replica has a slice.

    A server that has parts of several slices holds a shard for each: whoever has a slice meets only its own shards.

    Parameters
    ----------
    slices
        Consecutive ranges, which are the whole vector; some may be empty.
    servers
        Number of servers, at least one.
    block
        Number of parameters at whose multiples, counted from the beginning of a slice, shards begin.

    Raises
    ------
    UsageError
        See `shards`.
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
    """Return the shards where there are no servers: each partition's slice is divided among the replicas.

    Parameters
    ----------
    slices
        See `held_by_servers`.
    replicas
        Number of replicas, at least one.
    fragments
        For each slice, consecutive ranges of it, counted from its beginning, each of which is divided by itself. By
        default, each slice is one.

    Raises
    ------
    UsageError
        A slice or a fragment has fewer parameters than there are replicas.
    """
    fragments = fragments or [[Range(0, own.size)] for own in slices]
    for partition, own in enumerate(slices):
        if own.size < replicas:
            raise UsageError(
                f"topology.partitions: {len(slices)}, of which number {partition} holds {own.size} parameters, fewer "
                f"than the {replicas} that divide them, one in each replica; expected fewer partitions or replicas"
            )
    for number, fragment in enumerate(each for parts in fragments for each in parts):
        if fragment.size < replicas:
            raise UsageError(
                f"algorithm.fragments: {len(fragments[0])}, of which number {number % len(fragments[0])} has "
                f"{fragment.size} parameters, fewer than the {replicas} replicas that divide them; expected fewer "
                "fragments or replicas"
            )
    return [
        Held(part.shift(own.start + fragment.start), holder, partition)
        for partition, own in enumerate(slices)
        for fragment in fragments[partition]
        for holder, part in enumerate(split(fragment.size, replicas))
    ]
