"""The index of a checkpoint, which shows the shards' files as one model."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import msgspec
import numpy as np

from mpidl.parameters import Box, Layout, Range, Slice
from mpidl.storage.files import INDEX, LAYOUT, cannot_write, describe, encoded_layout, shard_file, sync
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
    constants: Mapping[str, np.ndarray] | None = None,
    aliases: Mapping[str, str] | None = None,
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
    constants : mapping of str to array, optional
        Tensors of the model that training leaves alone.
    aliases : mapping of str to str, optional
        Other names of tensors of the layout.

    Raises
    ------
    MpidlError
        A file can't be written or read, or isn't sealed.
    """
    encoded, other_names = (msgspec.json.encode(dict(each or {})).decode() for each in (data, aliases))
    path, names = directory / INDEX, [shard_file(number) for number in range(shards)]
    try:
        sources = [describe(directory / name) for name in names]
        with create(path) as file:
            file.attrs.update(
                config=config, version=version, shards=shards, data=encoded, aliases=other_names,
                **position.attributes(),
            )  # fmt: skip
            for name, values in (constants or {}).items():
                file.create_dataset(f"constants/{name}", data=values)
            seals = file.create_group("files").attrs
            for name in (*names, *others):
                seals[name] = str(recorded(directory / name))
            file[LAYOUT] = encoded_layout(layout)
            _map(file, layout, sources)
        seal(path)
        sync(directory)
        _rename(directory, directory.parent / str(position.step))
    except (OSError, RuntimeError) as error:
        raise cannot_write(path, error) from error


def _rename(directory: Path, target: Path) -> None:
    """Give a complete checkpoint its final name, in place of an earlier one of the same step.

    Between the two renamings there is no checkpoint of this step; `mpidl.storage.checkpoints.sweep` brings it back.
    """
    replaced = target.with_name(f".{target.name}.replaced")
    if target.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        target.rename(replaced)
    directory.rename(target)
    sync(target.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _map(file: h5py.File, layout: Layout, shards: Sequence[tuple[Range, Mapping[str, np.dtype[Any]]]]) -> None:
    """Show the shards' vectors as tensors."""
    places: dict[str, list[tuple[int, Slice]]] = {name: [] for name in layout.shapes}
    for number, (range, _) in enumerate(shards):
        for place in layout.within(range):
            places[place.name].append((number, place))
    for vector, dtype in shards[0][1].items():
        for name, shape in layout.shapes.items():
            virtual = h5py.VirtualLayout(shape, dtype)
            for number, place in places[name]:
                range = shards[number][0]
                source = h5py.VirtualSource(shard_file(number), vector, (range.size,), dtype)
                first = place.start - range.start
                virtual[place.box.slices(Box.whole(shape))] = source[first : first + place.size]
            file.create_virtual_dataset(f"{vector}/{name}", virtual)
