"""The flat parameter vector: named slices, ranges, shards and resharding, in pure functions without vectors."""

from mpidl.parameters.layout import Layout, Move, Slice, moves
from mpidl.parameters.ranges import Box, Range, boxes, chunks, merged, split, strides, within
from mpidl.parameters.shards import Held, fragments, held_by_replicas, held_by_servers, shards

__all__ = [
    "Box",
    "Held",
    "Layout",
    "Move",
    "Range",
    "Slice",
    "boxes",
    "chunks",
    "fragments",
    "held_by_replicas",
    "held_by_servers",
    "merged",
    "moves",
    "shards",
    "split",
    "strides",
    "within",
]
