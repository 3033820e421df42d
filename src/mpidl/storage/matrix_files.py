"""The square matrices of a checkpoint, by rows: each shard's file has those of its range as ``matrix/NAME``."""

from __future__ import annotations

import numpy as np

from mpidl.errors import MpidlError
from mpidl.parameters import Layout, Range, moves
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.files import MATRICES, readable
from mpidl.storage.own_values import dataset, opened

#: Elements that are read at a time.
BLOCK = 1 << 22


def read_rows(checkpoint: Checkpoint, name: str, range: Range, layout: Layout) -> np.ndarray:
    """Return the rows of a range of the parameters, and all columns, of the matrix saved under a name, in a layout.

    The result is of float64, shape (range.size, checkpoint.size). Raise MpidlError if a file can't be read, or has
    other numbers of rows or columns.
    """
    size = checkpoint.size
    result, places = np.empty((range.size, size)), _places(checkpoint, layout)
    own, step = places[slice(*range)], max(1, BLOCK // size)
    for path, held in zip(checkpoint.shards, checkpoint.ranges, strict=True):
        with readable(path), opened(path) as file:
            saved = dataset(file, f"{MATRICES}/{name}")
            if saved.shape != (held.size, size):
                raise MpidlError(f"{path}: {MATRICES}/{name}: shape {saved.shape}, expected {(held.size, size)}")
            for start in np.arange(held.start, held.stop, step).tolist():
                block = Range(start, min(start + step, held.stop))
                found = np.flatnonzero((own >= block.start) & (own < block.stop))
                if found.size:
                    rows = saved[block.start - held.start : block.stop - held.start]
                    result[found] = rows[own[found] - block.start][:, places]
    return result


def _places(checkpoint: Checkpoint, layout: Layout) -> np.ndarray:
    """Return the place in the checkpoint's vectors of each element of a vector in a layout."""
    whole = Range(0, checkpoint.size)
    saved = np.arange(whole.size)
    places = saved.copy()
    for move in moves(checkpoint.layout or layout.uncut, whole, layout, whole):
        move.copy(saved, places)
    return places
