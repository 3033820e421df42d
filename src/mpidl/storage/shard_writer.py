"""Writing one shard's file of a checkpoint a little at a time, between other work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from pathlib import Path

import h5py
import numpy as np

from mpidl.parameters import Range
from mpidl.shards.shard import Shard
from mpidl.storage.files import cannot_write, scratch, shard_file
from mpidl.storage.seal import create, seal

#: Bytes that are written at a time, which takes about a millisecond.
SLICE = 1 << 20
Writing = Generator[None, None, None]


class ShardWriter:
    """Writes one shard's file of each checkpoint that is ordered.

    Parameters
    ----------
    shard : Shard
    number : int
        The shard's number.
    checkpoints : Path
        Directory of the run's checkpoints.

    Attributes
    ----------
    obeyed : int
        Ordinal of the last order taken up, from 1; 0 before the first.
    """

    def __init__(self, shard: Shard, number: int, checkpoints: Path) -> None:
        self._shard, self._number, self._checkpoints = shard, number, checkpoints
        self.obeyed = 0
        self._writing: Writing | None = None

    @property
    def active(self) -> bool:
        """Whether a file is being written."""
        return self._writing is not None

    def obey(self, order: int, step: int) -> None:
        """Begin to write the shard's present state, unless this order has been taken up.

        Parameters
        ----------
        order : int
            Ordinal of the order, from 1; 0 is no order.
        step : int
            The checkpoint's step.
        """
        if order <= self.obeyed:
            return
        self.obeyed = order
        shard = self._shard
        directory = scratch(self._checkpoints, step)
        # Write a copy, because the shard goes on changing.
        self._writing = save_shard(directory, self._number, shard.range, shard.snapshot(), shard.clock)

    def advance(self) -> bool:
        """Write for about a millisecond, if there is anything to write.

        Returns
        -------
        bool
            Whether this completed the file: it is on disk.

        Raises
        ------
        MpidlError
            The file can't be written.
        """
        if self._writing is None or next(self._writing, StopIteration) is not StopIteration:
            return False
        self._writing = None
        return True


def save_shard(directory: Path, number: int, range: Range, vectors: dict[str, np.ndarray], clock: int) -> Writing:
    """Write a shard's file in small steps; each resumption of this generator takes about a millisecond.

    Parameters
    ----------
    directory : Path
        See `mpidl.storage.files.scratch`.
    number : int
        The shard's number.
    range : Range
        The shard's elements of the flat parameter vector.
    vectors : dict
        "parameters" and "rule/NAME", each of shape (range.size,). They must not change meanwhile.
    clock : int
        Number of updates applied to the shard.

    Raises
    ------
    MpidlError
        The file can't be written, for example because the disk is full.
    """
    path = directory / shard_file(number)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with create(path) as file:
            file.attrs.update(start=range.start, stop=range.stop, clock=clock)
            for name, vector in vectors.items():
                yield from _write(file, name, vector)
        yield from _in_background(lambda: seal(path))
    except (OSError, RuntimeError) as error:
        raise cannot_write(path, error) from error


def _write(file: h5py.File, name: str, vector: np.ndarray) -> Writing:
    """Write a vector slice by slice."""
    dataset, per_slice = file.create_dataset(name, vector.shape, vector.dtype), SLICE // vector.itemsize
    for start in range(0, vector.size, per_slice):
        piece = vector[start : start + per_slice]
        dataset[start : start + piece.size] = piece
        yield


def _in_background(action: Callable[[], None]) -> Writing:
    """Run what blocks outside Python in a thread, and yield until it is done."""
    failures: list[Exception] = []

    def run() -> None:
        try:
            action()
        except OSError as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        yield
    if failures:
        raise failures[0]
