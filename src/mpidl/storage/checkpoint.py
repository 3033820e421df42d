"""Checkpoints: one HDF5 file for each shard, and an index that shows them as one model.

A checkpoint is written in ``checkpoints/.STEP`` and renamed to ``checkpoints/STEP`` when every file is on disk: it
appears whole or not at all. ``index.h5`` is written last. Its virtual datasets give each tensor in its own shape,
whatever the number of shards; its group ``files`` has the checksums of the other files. Reading checks none, but
`newest_good` does.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import msgspec
import numpy as np

from mpidl.errors import MpidlError, UsageError
from mpidl.parameters import Range, transfers
from mpidl.storage.files import INDEX, cannot_read, describe, replica_file, shard_file
from mpidl.storage.integrity import DamagedError, verify
from mpidl.storage.position import Position
from mpidl.version import VERSION


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
    sections : dict of str to dict
        The same, read.
    data : dict of str to str
        What the run's data were; empty if an earlier version saved it.
    shapes : dict of str to tuple of int
        Shapes of the parameter tensors, by their names.
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
            with h5py.File(path / INDEX) as file:
                attributes, self.shapes = dict(file.attrs), _shapes(file["parameters"])
            _check_version(path, str(attributes["version"]))
            shards = [describe(path / shard_file(k)) for k in range(int(attributes["shards"]))]
            self.position = Position.of(attributes)
            self.config = str(attributes["config"])
            self.sections: dict[str, Any] = tomllib.loads(self.config)
            self.data: dict[str, str] = msgspec.json.decode(attributes.get("data", "{}"))
        except (OSError, KeyError, ValueError) as error:
            raise UsageError(f"{path}: not a readable checkpoint: {error}") from error
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
            A file can't be read, or the checkpoint has nothing of the range.
        """
        result: np.ndarray | None = None
        for transfer in transfers(self._ranges, range):
            path, source, target = self.path / shard_file(transfer.source), transfer.source_range, transfer.target_range
            try:
                with h5py.File(path) as file:
                    dataset = file[vector]
                    if result is None:
                        result = np.empty(range.size, dataset.dtype)
                    dataset.read_direct(result, np.s_[source.start : source.stop], np.s_[target.start : target.stop])
            except (OSError, KeyError) as error:
                raise cannot_read(path, error) from error
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


def _shapes(parameters: h5py.Group) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}

    def take(name: str, item: h5py.Dataset | h5py.Group) -> None:
        if isinstance(item, h5py.Dataset):
            shapes[name] = item.shape

    parameters.visititems(take)
    return shapes


def _check_version(path: Path, version: str) -> None:
    """Raise UsageError if a later version of this package saved a checkpoint."""
    if _numbers(version) > _numbers(VERSION):
        raise UsageError(f"{path}: saved by mpidl {version}, this is mpidl {VERSION}; use that version or a later one")


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


def steps(checkpoints: Path) -> list[int]:
    """Return the steps of the checkpoints in a run's directory, ascending.

    Raises
    ------
    MpidlError
        The directory can't be read.
    """
    try:
        return sorted(int(entry.name) for entry in checkpoints.iterdir() if entry.name.isdecimal())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise cannot_read(checkpoints, error) from error


def newest_good(
    run: Path, rank: int = 0, gather: Callable[[Any], list[Any]] = lambda value: [value]
) -> tuple[Path, list[str]]:
    """Find a run's newest checkpoint that is as it was saved; collective over the ranks that share the work.

    The first rank lists the checkpoints; each rank verifies its part of the files.

    Parameters
    ----------
    run : Path
        ``runs/NAME``.
    rank : int
        This rank.
    gather : callable
        Returns the values of all ranks on every rank, as ``comm.allgather`` does.

    Returns
    -------
    path : Path
        The checkpoint, on every rank.
    lines : list of str
        A line about each newer one that was passed over because it is damaged.

    Raises
    ------
    UsageError
        There is none.
    MpidlError
        A file can't be read for another reason than damage. Every rank raises the same error.
    """
    checkpoints = run / "checkpoints"
    listings = gather(_outcome(steps, checkpoints) if rank == 0 else None)
    if isinstance(listings[0], MpidlError):
        raise listings[0]
    damaged: list[MpidlError] = []
    for step in reversed(listings[0]):
        path = checkpoints / str(step)
        errors = [error for error in gather(_outcome(verify, path, rank, len(listings))) if error is not None]
        for error in errors:
            if not isinstance(error, DamagedError):
                raise error
        if not errors:
            return path, [f"{error}; taking {step} instead" for error in damaged]
        damaged.append(errors[0])
    if damaged:
        raise UsageError(f"{checkpoints}: every checkpoint is damaged; {damaged[0]}")
    raise UsageError(f"{run}: no checkpoint to read in {checkpoints}")


def _outcome(action: Callable[..., Any], *arguments: Any) -> Any:
    """Return what an action returns, or the error that it raises."""
    try:
        return action(*arguments)
    except MpidlError as error:
        return error


def latest(run: Path) -> Checkpoint:
    """Return a run's newest checkpoint that is as it was saved; stderr names those passed over.

    Raises
    ------
    UsageError, MpidlError
        See `newest_good`.
    """
    path, lines = newest_good(run)
    for line in lines:
        print(f"mpidl: {line}", file=sys.stderr, flush=True)
    return Checkpoint(path)


def prune(checkpoints: Path, keep: int, newest: int) -> None:
    """Remove all checkpoints but the initial state, the one that the run saved last, and the `keep` - 1 before it.

    Parameters
    ----------
    checkpoints : Path
    keep : int
        From 1.
    newest : int
        Step of the checkpoint saved last. Those of later steps were damaged and passed over when the run resumed.
    """
    found = [step for step in steps(checkpoints) if step > 0]
    kept = [step for step in found if step <= newest][-keep:]
    for step in set(found) - set(kept):
        path, removed = checkpoints / str(step), checkpoints / f".{step}.removed"
        # Remove none in part: what is under its name is whole.
        with contextlib.suppress(OSError):
            path.rename(removed)
            shutil.rmtree(removed)


def sweep(checkpoints: Path) -> None:
    """Remove what a run that died left half-written; give a whole checkpoint its name, unless there is one of its step.

    A run that resumes sweeps before it looks for its newest checkpoint.

    Raises
    ------
    MpidlError
        A file can't be read.
    """
    for entry in sorted(checkpoints.glob(".*"), key=lambda entry: entry.suffix):
        with contextlib.suppress(DamagedError):
            verify(entry)
            target = checkpoints / str(Checkpoint(entry).position.step)
            if not target.exists():
                entry.rename(target)
        shutil.rmtree(entry, ignore_errors=True)
