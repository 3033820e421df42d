"""The index of a checkpoint, which shows the shards' files as one model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mpidl.parameters import Layout, Range, boxes
from mpidl.storage.files import cannot_write, describe, shard_file, sync
from mpidl.storage.position import Position


def save_index(directory: Path, layout: Layout, shards: int, position: Position, config: str, version: str) -> None:
    """Write the index over the shards' files in `directory`, then rename that to the checkpoint's final name.

    Parameters
    ----------
    directory : Path
        See `mpidl.storage.files.scratch`.
    layout : Layout
        The model's tensors.
    shards : int
        Number of shards.
    position : Position
    config : str
        The run's resolved configuration as TOML text.
    version : str
        The package's version.

    Raises
    ------
    MpidlError
        A file can't be written or read.
    """
    path = directory / "index.h5"
    try:
        sources = [describe(directory / shard_file(number)) for number in range(shards)]
        with h5py.File(path, "w") as file:
            file.attrs.update(config=config, version=version, shards=shards, **position.attributes())
            for vector, dtype in sources[0][1].items():
                for tensor in layout:
                    virtual = h5py.VirtualLayout(tensor.shape, dtype)
                    for number, (part, _) in enumerate(sources):
                        _map(virtual, tensor.shape, tensor.range, part, shard_file(number), vector)
                    file.create_virtual_dataset(f"{vector}/{tensor.name}", virtual)
        sync(path)
        sync(directory)
        directory.rename(directory.parent / str(position.step))
        sync(directory.parent)
    except (OSError, RuntimeError) as error:
        raise cannot_write(path, error) from error


def _map(virtual: Any, shape: tuple[int, ...], tensor: Range, shard: Range, file: str, dataset: str) -> None:
    """Map what a tensor and a shard have in common."""
    common = tensor.intersect(shard)
    if common is None:
        return
    source = h5py.VirtualSource(file, dataset, (shard.size,), virtual.dtype)
    offset = common.start - shard.start
    for box, part in boxes(shape, common.start - tensor.start, common.stop - tensor.start):
        virtual[box] = source[offset + part.start : offset + part.stop]
