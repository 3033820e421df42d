"""Resharding: the copies that move parameters into other shards or another layout."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from mpidl.parameters.box import Box
from mpidl.parameters.layout import Layout, Slice
from mpidl.parameters.ranges import Range


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
