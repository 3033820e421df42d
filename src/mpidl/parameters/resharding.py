"""Resharding: the copies that move parameters from one set of shards to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mpidl.errors import MpidlError
from mpidl.parameters.ranges import Range


class Transfer(NamedTuple):
    """One copy, from `source_range` of old shard number `source` to `target_range` of the new shard.

    Both ranges are relative to their shards.
    """

    source: int
    source_range: Range
    target_range: Range


def transfers(old: Sequence[Range], new: Range) -> list[Transfer]:
    """Return the copies that assemble the new shard from the old ones, in the order of its elements.

    Parameters
    ----------
    old
        The old shards, in any order.
    new
        The new shard.

    Raises
    ------
    MpidlError
        If an element of the new shard lies in no old shard, or in two.
    """
    found: list[Transfer] = []
    position = new.start
    for source, shard in sorted(enumerate(old), key=lambda pair: pair[1]):
        common = shard.intersect(new)
        if common is None:
            continue
        if common.start != position:
            break
        found.append(Transfer(source, common.shift(-shard.start), common.shift(-new.start)))
        position = common.stop
    if position < new.stop:
        raise MpidlError(
            f"parameters {new.start} to {new.stop}: the old shards don't contain element {position} exactly once"
        )
    return found
