"""Checkpoints: one HDF5 file for each shard, and an index that shows them as one model.

A checkpoint is written in ``checkpoints/.STEP`` and renamed to ``checkpoints/STEP`` when every file is on disk: it
appears whole or not at all. ``index.h5`` is written last. Its virtual datasets give each tensor in its own shape,
whatever the number of shards. Every dataset of a shard carries its CRC-32, which reading checks.
"""

from __future__ import annotations

import contextlib
import shutil
import zlib
from pathlib import Path

import h5py
import numpy as np

from mpidl.errors import MpidlError, UsageError
from mpidl.parameters import Range, transfers
from mpidl.storage.files import describe, replica_file, shard_file
from mpidl.storage.position import Position


class Checkpoint:
    """A checkpoint on disk, read by any number of servers.

    Parameters
    ----------
    path : Path
        ``runs/NAME/checkpoints/STEP``.

    Attributes
    ----------
    path : Path
    position : Position
    config : str
        The run's resolved configuration as TOML text.
    states : tuple of str
        Names of the vectors beside the parameters.
    size : int
        Number of parameters.

    Raises
    ------
    UsageError
        There is no readable checkpoint.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with h5py.File(path / "index.h5") as file:
                attributes = dict(file.attrs)
            shards = [describe(path / shard_file(k)) for k in range(int(attributes["shards"]))]
        except (OSError, KeyError) as error:
            raise UsageError(f"{path}: not a readable checkpoint: {error}") from error
        self.position = Position.of(attributes)
        self.config = str(attributes["config"])
        self._ranges = [part for part, _ in shards]
        self.states = tuple(name.removeprefix("rule/") for name in shards[0][1] if name != "parameters")
        self.size = self._ranges[-1].stop

    def read(self, vector: str, range: Range) -> np.ndarray:
        """Read a range of a vector, from however many shards.

        Parameters
        ----------
        vector : str
            "parameters" or "rule/NAME".
        range : Range
            Elements of the flat vector.

        Returns
        -------
        array, shape (range.size,)

        Raises
        ------
        MpidlError
            The stored data fail their checksum, or the checkpoint has nothing of the range.
        """
        result: np.ndarray | None = None
        for transfer in transfers(self._ranges, range):
            path = self.path / shard_file(transfer.source)
            with h5py.File(path) as file:
                dataset = file[vector]
                values = dataset[...]
                if zlib.crc32(values.data) != int(dataset.attrs["crc32"]):
                    raise MpidlError(f"{path}: {vector} fails its checksum: the file is damaged; use an older one")
            if result is None:
                result = np.empty(range.size, values.dtype)
            source, target = transfer.source_range, transfer.target_range
            result[target.start : target.stop] = values[source.start : source.stop]
        if result is None:
            raise MpidlError(f"{self.path}: has no parameters {range.start} to {range.stop}")
        return result

    def shard_state(self, range: Range) -> dict[str, np.ndarray]:
        """Return what the shards kept: their vectors' parts of a range, and the counters of the first of them.

        Parameters
        ----------
        range : Range
            Elements of the flat vector.

        Returns
        -------
        dict of str to array
            See `mpidl.shards.state.ShardState.state`. Earlier versions saved the vectors only.
        """
        first = transfers(self._ranges, range)[0].source
        state: dict[str, np.ndarray] = {}
        with h5py.File(self.path / shard_file(first)) as file:
            size = self._ranges[first].size

            def take(name: str, item: h5py.Dataset | h5py.Group) -> None:
                if isinstance(item, h5py.Dataset):
                    whole = item.shape == (size,) and item.dtype.kind == "f"
                    state[name] = self.read(name, range) if whole else item[...]

            file.visititems(take)
        return state

    def replica_vectors(self, number: int) -> dict[str, np.ndarray]:
        """Return the vectors that a replica kept: those of its state, and what its wire format had left out."""
        vectors: dict[str, np.ndarray] = {}

        def take(name: str, item: h5py.Dataset | h5py.Group) -> None:
            if isinstance(item, h5py.Dataset):
                vectors[name] = item[...]

        path = self.path / replica_file(number)
        if path.exists():
            with h5py.File(path) as file:
                file.visititems(take)
        return vectors

    def clock(self, range: Range) -> int:
        """Return the largest clock of the shards that had a part of `range`."""
        clocks = []
        for transfer in transfers(self._ranges, range):
            with h5py.File(self.path / shard_file(transfer.source)) as file:
                clocks.append(int(file.attrs["clock"]))
        return max(clocks)


def steps(checkpoints: Path) -> list[int]:
    """Return the steps of the checkpoints in a run's directory, ascending."""
    if not checkpoints.is_dir():
        return []
    return sorted(int(entry.name) for entry in checkpoints.iterdir() if entry.name.isdigit())


def latest(run: Path) -> Checkpoint:
    """Return a run's newest checkpoint.

    Raises
    ------
    UsageError
        There is none.
    """
    found = steps(run / "checkpoints")
    if not found:
        raise UsageError(f"{run}: no checkpoint to read in {run / 'checkpoints'}")
    return Checkpoint(run / "checkpoints" / str(found[-1]))


def prune(checkpoints: Path, keep: int) -> None:
    """Remove all checkpoints but the initial state and the `keep` newest."""
    found = [step for step in steps(checkpoints) if step > 0]
    for step in found[: max(0, len(found) - keep)]:
        with contextlib.suppress(OSError):
            shutil.rmtree(checkpoints / str(step))


def sweep(checkpoints: Path) -> None:
    """Remove the half-written checkpoints of a run that died."""
    if checkpoints.is_dir():
        for entry in checkpoints.glob(".*"):
            shutil.rmtree(entry, ignore_errors=True)
