"""The index of a checkpoint, which shows the shards' files as one model."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import msgspec

from mpidl.parameters import Layout, Range, boxes
from mpidl.storage.files import INDEX, cannot_write, describe, shard_file, sync
from mpidl.storage.position import Position
from mpidl.storage.seal import create, recorded, seal


def save_index(
    directory: Path,
    layout: Layout,
    shards: int,
    position: Position,
    config: str,
    version: str,
    data: Mapping[str, str],
    others: Sequence[str] = (),
) -> None:
    """Write the index over the files in `directory`, then rename that to the checkpoint's final name.

    The files must be sealed (`mpidl.storage.seal.seal`). They are named here because a directory's listing may be
    older than its files where ranks of several nodes write.

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
    data : mapping of str to str
        What the run's data are.
    others : sequence of str
        Names of the checkpoint's files beside the index and the shards.

    Raises
    ------
    MpidlError
        A file can't be written or read, or isn't sealed.
    """
    encoded = msgspec.json.encode(data).decode()
    path, names = directory / INDEX, [shard_file(number) for number in range(shards)]
    try:
        sources = [describe(directory / name) for name in names]
        with create(path) as file:
            file.attrs.update(config=config, version=version, shards=shards, data=encoded, **position.attributes())
            seals = file.create_group("files").attrs
            for name in (*names, *others):
                seals[name] = str(recorded(directory / name))
            for vector, dtype in sources[0][1].items():
                for tensor in layout:
                    virtual = h5py.VirtualLayout(tensor.shape, dtype)
                    for number, (part, _) in enumerate(sources):
                        _map(virtual, tensor.shape, tensor.range, part, shard_file(number), vector)
                    file.create_virtual_dataset(f"{vector}/{tensor.name}", virtual)
        seal(path)
        sync(directory)
        _rename(directory, directory.parent / str(position.step))
    except (OSError, RuntimeError) as error:
        raise cannot_write(path, error) from error


def _rename(directory: Path, target: Path) -> None:
    """Give a complete checkpoint its final name, in place of an earlier one of the same step.

    Between the two renamings there is no checkpoint of this step; `mpidl.storage.checkpoint.sweep` brings it back.
    """
    replaced = target.with_name(f".{target.name}.replaced")
    if target.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        target.rename(replaced)
    directory.rename(target)
    sync(target.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _map(virtual: Any, shape: tuple[int, ...], tensor: Range, shard: Range, file: str, dataset: str) -> None:
    """Map what a tensor and a shard have in common."""
    common = tensor.intersect(shard)
    if common is None:
        return
    source = h5py.VirtualSource(file, dataset, (shard.size,), virtual.dtype)
    offset = common.start - shard.start
    for box, part in boxes(shape, common.start - tensor.start, common.stop - tensor.start):
        virtual[box] = source[offset + part.start : offset + part.stop]
