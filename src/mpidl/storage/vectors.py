"""Vectors and square matrices of a checkpoint, each spread over several files, read in any layout of their elements."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import h5py
import numpy as np

from mpidl.errors import MpidlError
from mpidl.parameters import Layout, Move, Range, merged, moves, strides
from mpidl.storage.files import MATRICES, readable
from mpidl.storage.own_values import dataset, opened

#: Elements of a matrix that are read at a time.
BLOCK = 1 << 22


class SavedVectors:
    """Vectors of `size` elements spread over several HDF5 `files`, each with one range of them in its datasets.

    `layout` is that of the vectors.
    """

    def __init__(self, files: Sequence[tuple[Path, Range]], layout: Layout) -> None:
        self.files, self._layout = files, layout
        self.size = max(range.stop for _, range in files)

    def holders(self, range: Range, layout: Layout | None = None) -> list[int]:
        """Return the numbers of the files with parts of a range, the one with its first element first.

        The range is one of the vector in `layout`, by default that of the files. Raise MpidlError if an element of the
        range is in no file, or in two.
        """
        return list(self._moves(range, layout))

    def read(self, vector: str, range: Range, layout: Layout | None = None) -> np.ndarray:
        """Read a range, as for `holders`, of the vector in the datasets of this name, straight into the result.

        The result has shape (range.size,). Raise MpidlError if a file can't be read, or an element of the range is in
        no file, or in two.
        """
        result: np.ndarray | None = None
        for number, found in self._moves(range, layout).items():
            path, _ = self.files[number]
            with readable(path), opened(path) as file:
                held = dataset(file, vector)
                if result is None:
                    result = np.empty(range.size, held.dtype)
                for move in found:
                    _read(held, move, result)
        if result is None:
            raise MpidlError(f"{self.files[0][0].parent}: has no parameters {range.start} to {range.stop}")
        return result

    def rows(self, name: str, range: Range, layout: Layout) -> np.ndarray:
        """Return the rows of a range of the vectors, and all columns, of the matrix ``matrix/NAME``, in a layout.

        Each file has the rows of its range. The result is of float64, shape (range.size, size). Raise MpidlError if a
        file can't be read, or has other numbers of rows or columns.
        """
        result, places = np.empty((range.size, self.size)), self._places(layout)
        own, step = places[slice(*range)], max(1, BLOCK // self.size)
        for path, held in self.files:
            with readable(path), opened(path) as file:
                saved = dataset(file, f"{MATRICES}/{name}")
                if saved.shape != (held.size, self.size):
                    raise MpidlError(
                        f"{path}: {MATRICES}/{name}: shape {saved.shape}, expected {(held.size, self.size)}"
                    )
                for start in np.arange(held.start, held.stop, step).tolist():
                    block = Range(start, min(start + step, held.stop))
                    found = np.flatnonzero((own >= block.start) & (own < block.stop))
                    if found.size:
                        rows = saved[block.start - held.start : block.stop - held.start]
                        result[found] = rows[own[found] - block.start][:, places]
        return result

    def _places(self, layout: Layout) -> np.ndarray:
        """Return the place in these vectors of each element of a vector in a layout."""
        whole = Range(0, self.size)
        saved = np.arange(whole.size)
        places = saved.copy()
        for move in moves(self._layout, whole, layout, whole):
            move.copy(saved, places)
        return places

    def _moves(self, range: Range, layout: Layout | None) -> dict[int, list[Move]]:
        """Return the copies out of each file."""
        old = self._layout
        if layout is None or layout == old:
            old = layout = Layout([("", (self.size,))])  # the order is the same, whatever the tensors
        found = {number: list(moves(old, held, layout, range)) for number, (_, held) in enumerate(self.files)}
        if (number := sum(move.box.size for each in found.values() for move in each)) != range.size:
            raise MpidlError(
                f"{self.files[0][0].parent}: has {number} of the parameters {range.start} to {range.stop}, "
                f"expected each of the {range.size} once"
            )
        first = {
            number: min(move.target.start + move.box.offset(move.target.box) for move in each)
            for number, each in found.items()
            if each
        }
        return {number: found[number] for number in sorted(first, key=first.__getitem__)}


def _read(held: h5py.Dataset, move: Move, result: np.ndarray) -> None:
    """Copy a box out of a file's part of a vector."""
    box, source, target = move
    within = [each.start for each in box.slices(target.box)]
    memory = h5py.h5s.create_simple(target.shape or (1,))
    memory.select_hyperslab(tuple(within) or (0,), box.shape or (1,))
    start = source.start + box.offset(source.box)
    *outer, (count, stride), (block, _) = [(1, 0), *merged(box.shape, strides(source.shape))]
    selected, operation = held.id.get_space(), h5py.h5s.SELECT_SET
    for offsets in product(*(range(0, extent * distance, distance) for extent, distance in outer if distance)):
        origin = (start + sum(offsets),)
        selected.select_hyperslab(origin, (count,), (max(stride, block),), (block,), operation)
        operation = h5py.h5s.SELECT_OR
    held.id.read(memory, selected, result[target.start : target.stop].reshape(target.shape))
