"""Resharding: the copies that move parameters from one set of shards to another, or into another layout."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from mpidl.errors import MpidlError
from mpidl.parameters.box import Box
from mpidl.parameters.layout import Layout, Slice
from mpidl.parameters.ranges import Range


class Copy(NamedTuple):
    """One copy, from `source_range` of old shard number `source` to `target_range` of the new shard.

    Both ranges are relative to their shards.
    """

    source: int
    source_range: Range
    target_range: Range


def copies(old: Sequence[Range], new: Range) -> list[Copy]:
    """Return the copies that assemble the new shard from the old ones, in the order of its elements.

    The old shards may be in any order. Raise MpidlError if an element of the new shard is in none of them, or in two.
    """
    found: list[Copy] = []
    position = new.start
    for source, shard in sorted(enumerate(old), key=lambda pair: pair[1]):
        common = shard.intersect(new)
        if common is None:
            continue
        if common.start != position:
            break
        found.append(Copy(source, common.shift(-shard.start), common.shift(-new.start)))
        position = common.stop
    if position < new.stop:
        raise MpidlError(
            f"parameters {new.start} to {new.stop}: the old shards don't contain element {position} exactly once"
        )
    return found


class Move(NamedTuple):
    """A copy of the box of a tensor between ranges of two flat vectors of the same tensors in different layouts.

    `source` and `target` are the contiguous boxes around it; their `start` counts from the beginning of the range.
    """

    box: Box
    source: Slice
    target: Slice

    def copy(self, source: Any, target: Any) -> None:
        """Copy between the arrays of the two ranges, of NumPy or CuPy."""
        around, into = (
            vector[part.start : part.stop].reshape(part.shape)
            for vector, part in ((source, self.source), (target, self.target))
        )
        into[self.box.slices(self.target.box)] = around[self.box.slices(self.source.box)]


def moves(old: Layout, held: Range, new: Layout, wanted: Range) -> Iterator[Move]:
    """Yield the copies of the elements that range `held` of `old`'s vector shares with range `wanted` of `new`'s."""
    targets: defaultdict[str, list[Slice]] = defaultdict(list)
    for part in new.within(wanted):
        targets[part.name].append(part)
    for source in old.within(held):
        for target in targets[source.name]:
            if common := source.box.intersect(target.box):
                yield Move(common, _shifted(source, -held.start), _shifted(target, -wanted.start))


def _shifted(part: Slice, by: int) -> Slice:
    return Slice(part.name, part.box, part.start + by)
