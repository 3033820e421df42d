"""Checkpoints: one HDF5 file for each shard, and an index that shows them as one model.

A checkpoint is written in ``checkpoints/.STEP`` and renamed to ``checkpoints/STEP`` when every file is on disk: it
appears whole or not at all. ``index.h5`` is written last. Its virtual datasets give each tensor in its own shape,
whatever the number of shards. Every dataset of a shard carries its CRC-32, which reading checks.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import zlib
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mpidl.errors import MpidlError, UsageError
from mpidl.parameters import Layout, Range, boxes, transfers
from mpidl.storage.position import Position

#: Bytes written between two looks at the mailboxes: about a millisecond of work.
SLICE = 1 << 20
Writing = Generator[None, None, None]


def scratch(checkpoints: Path, step: int) -> Path:
    """Return the directory in which checkpoint `step` is written."""
    return checkpoints / f".{step}"


def shard_file(number: int) -> str:
    """Return the name of a shard's file."""
    return f"shard-{number}.h5"


def save_shard(directory: Path, number: int, range: Range, vectors: dict[str, np.ndarray], clock: int) -> Writing:
    """Write a shard's file in small steps: each resumption of this generator takes about a millisecond.

    Parameters
    ----------
    directory : Path
    number : int
        The shard's number.
    range : Range
        What it holds of the flat vector.
    vectors : dict
        "parameters" and "rule/STATE", each of shape (range.size,); they must not change meanwhile.
    clock : int
        Updates applied.

    Raises
    ------
    MpidlError
        The file can't be written, such as on a full disk.
    """
    path = directory / shard_file(number)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with h5py.File(path, "w") as file:
            file.attrs.update(start=range.start, stop=range.stop, clock=clock)
            for name, vector in vectors.items():
                dataset = file.create_dataset(name, vector.shape, vector.dtype)
                checksum = 0
                per_slice = SLICE // vector.itemsize
                for start in _starts(vector.size, per_slice):
                    piece = vector[start : start + per_slice]
                    dataset[start : start + piece.size] = piece
                    checksum = zlib.crc32(piece.data, checksum)
                    yield
                dataset.attrs["crc32"] = np.uint32(checksum)
        yield from _in_background(lambda: _sync(path))
    except (OSError, RuntimeError) as error:
        raise cannot_write(path, error) from error


def save_index(directory: Path, layout: Layout, shards: int, position: Position, config: str, version: str) -> None:
    """Write the index over the shards' files in `directory`, then let the checkpoint appear under its final name.

    Raises
    ------
    MpidlError
        The files can't be written, or don't hold the whole model.
    """
    path = directory / "index.h5"
    try:
        sources = [_describe(directory / shard_file(k)) for k in range(shards)]
        with h5py.File(path, "w") as file:
            file.attrs.update(
                step=position.step, samples=position.samples, epoch=position.epoch, config=config, version=version,
                next_portion=position.next_portion, shards=shards,
            )  # fmt: skip
            if position.state is not None:
                file.attrs["coordinator"] = json.dumps(position.state)
            file.attrs["unfinished"] = np.array(position.unfinished, np.int64).reshape(-1, 2)
            for vector, dtype in sources[0][1].items():
                for tensor in layout:
                    virtual = h5py.VirtualLayout(tensor.shape, dtype)
                    for number, (held, _) in enumerate(sources):
                        _map(virtual, tensor.shape, tensor.range, held, shard_file(number), vector)
                    file.create_virtual_dataset(f"{vector}/{tensor.name}", virtual)
        _sync(path)
        _sync(directory)
        final = directory.parent / str(position.step)
        directory.rename(final)
        _sync(directory.parent)
    except (OSError, RuntimeError) as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: Exception) -> MpidlError:
    """Return the one-line error for a file that can't be written."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    numbered = reason.partition("error message = '")[2].partition("'")[0]
    return MpidlError(f"{path}: can't be written: {numbered or reason}")


def _starts(size: int, step: int) -> Sequence[int]:
    return range(0, size, step)


def _describe(path: Path) -> tuple[Range, dict[str, np.dtype]]:
    with h5py.File(path) as file:
        names = ["parameters", *(f"rule/{state}" for state in file.get("rule", {}))]
        return Range(int(file.attrs["start"]), int(file.attrs["stop"])), {name: file[name].dtype for name in names}


def _map(virtual: Any, shape: tuple[int, ...], tensor: Range, held: Range, file: str, dataset: str) -> None:
    """Map the part of a tensor that one shard holds."""
    common = tensor.intersect(held)
    if common is None:
        return
    source = h5py.VirtualSource(file, dataset, (held.size,), virtual.dtype)
    offset = common.start - held.start
    for box, part in boxes(shape, common.start - tensor.start, common.stop - tensor.start):
        virtual[box] = source[offset + part.start : offset + part.stop]


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _in_background(action: Callable[[], None]) -> Writing:
    """Run something that blocks outside Python in a thread, yielding until it is done."""
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


class Checkpoint:
    """A checkpoint on disk, read by any number of servers.

    Parameters
    ----------
    path : Path
        ``runs/NAME/checkpoints/STEP``.

    Attributes
    ----------
    position : Position
    config : str
        The run's resolved configuration as TOML text.

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
            shards = [_describe(path / shard_file(k)) for k in range(int(attributes["shards"]))]
        except (OSError, KeyError) as error:
            raise UsageError(f"{path}: not a readable checkpoint: {error}") from error
        self.position = Position(
            int(attributes["step"]),
            int(attributes["samples"]),
            float(attributes["epoch"]),
            int(attributes["next_portion"]),
            [(int(portion), int(done)) for portion, done in attributes["unfinished"]],
            json.loads(attributes["coordinator"]) if "coordinator" in attributes else None,
        )
        self.config = str(attributes["config"])
        self._held = [held for held, _ in shards]
        self.states = tuple(name.removeprefix("rule/") for name in shards[0][1] if name != "parameters")
        self.size = self._held[-1].stop

    def read(self, vector: str, range: Range) -> np.ndarray:
        """Return a part of "parameters" or "rule/STATE" as a 1-D array, from whichever shards hold it.

        Raises
        ------
        MpidlError
            The stored data fail their checksum.
        """
        result: np.ndarray | None = None
        for transfer in transfers(self._held, range):
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
            raise MpidlError(f"{self.path}: holds nothing of {range}")
        return result

    def clock(self, range: Range) -> int:
        """Return the most updates that any shard had applied which held a part of `range`."""
        clocks = []
        for transfer in transfers(self._held, range):
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
    """Remove all but the initial state and the `keep` newest checkpoints."""
    found = [step for step in steps(checkpoints) if step > 0]
    for step in found[: max(0, len(found) - keep)]:
        with contextlib.suppress(OSError):
            shutil.rmtree(checkpoints / str(step))


def sweep(checkpoints: Path) -> None:
    """Remove what a run that died left half-written."""
    if checkpoints.is_dir():
        for entry in checkpoints.glob(".*"):
            shutil.rmtree(entry, ignore_errors=True)
