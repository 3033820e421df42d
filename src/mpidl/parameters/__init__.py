"""Arithmetic on the flat parameter vector: named slices, shards, resharding. Pure, allocates no vector."""

from mpidl.parameters.boxes import boxes
from mpidl.parameters.layout import Layout, Slice
from mpidl.parameters.ranges import Range, chunks, split
from mpidl.parameters.resharding import Transfer, transfers
from mpidl.parameters.shards import shards

__all__ = ["Layout", "Range", "Slice", "Transfer", "boxes", "chunks", "shards", "split", "transfers"]
