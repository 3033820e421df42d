"""The flat parameter vector: named slices, ranges, shards and resharding. Pure functions that allocate no vectors."""

from mpidl.parameters.boxes import boxes
from mpidl.parameters.layout import Layout, Slice
from mpidl.parameters.ranges import Range, chunks, split
from mpidl.parameters.resharding import Transfer, transfers
from mpidl.parameters.shards import shards

__all__ = ["Layout", "Range", "Slice", "Transfer", "boxes", "chunks", "shards", "split", "transfers"]
