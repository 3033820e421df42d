"""The index of a checkpoint, which shows its other files as one model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import h5py
import msgspec
import numpy as np

from mpidl.launch.points import point
from mpidl.parameters import Box, Layout, Range, Slice
from mpidl.storage.files import INDEX, LAYOUT, SHARD, cannot_write, describe, encoded_layout, places, shard_file, sync
from mpidl.storage.integrity import create, recorded, seal
from mpidl.storage.position import Position
from mpidl.storage.removal import remove, set_aside


class Described(msgspec.Struct, frozen=True):
    """What an index has of another file: its seal and, of a shard's, the range and the vectors' dtypes by name."""

    seal: str
    range: tuple[int, int] = (0, 0)
    vectors: dict[str, str] = {}


def describe_file(path: Path) -> Described:
    """Return what an index has of a sealed file; raise OSError if it can't be read, or isn't sealed."""
    seal = str(recorded(path))
    if not path.name.startswith(SHARD):
        return Described(seal)
    held, vectors = describe(path)
    return Described(seal, (held.start, held.stop), {name: dtype.str for name, dtype in vectors.items()})


@dataclass(frozen=True, eq=False)
class Index:
    """What the index of a checkpoint has beside the description of other files.

    Attributes
    ----------
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
        Description of the run's data.
    others : sequence of str
        Names of the checkpoint's files beside the index and the shards.
    constants : mapping of str to array
        Tensors of the model that training doesn't change.
    aliases : mapping of str to str
        Other names of tensors of the layout.
    """

    layout: Layout
    shards: int
    position: Position
    config: str
    version: str
    data: Mapping[str, str]
    others: Sequence[str] = ()
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names of the checkpoint's other files."""
        return [*map(shard_file, range(self.shards)), *self.others]

    def write(self, directory: Path, files: Mapping[str, Described]) -> None:
        """Write and seal the index over all `names`, given what it has of each; these files may lie elsewhere.

        Raise MpidlError if it can't be written.
        """
        path = directory / INDEX
        data, aliases = (msgspec.json.encode(dict(each)).decode() for each in (self.data, self.aliases))
        try:
            with create(path) as file:
                file.attrs.update(
                    config=self.config, version=self.version, shards=self.shards, data=data, aliases=aliases,
                    **self.position.attributes(),
                )  # fmt: skip
                for name, place in places(self.constants).items():
                    file.create_dataset(f"constants/{place}", data=self.constants[name])
                seals = file.create_group("files").attrs
                for name in self.names:
                    seals[name] = files[name].seal
                file[LAYOUT] = encoded_layout(self.layout)
                _map(file, self.layout, [files[shard_file(number)] for number in range(self.shards)])
            seal(path)
            point("index-written")
        except (OSError, RuntimeError) as error:
            raise cannot_write(path, error) from error


def save_index(directory: Path, index: Index) -> None:
    """Write the index over the sealed files in `directory`, then rename that to the checkpoint's final name.

    The files are named by the index because a directory's listing may lag behind where ranks of several nodes write.
    Raise MpidlError if a file can't be written or read, or isn't sealed.

    Parameters
    ----------
    directory : Path
        From `mpidl.storage.files.scratch`.
    index : Index
    """
    try:
        index.write(directory, {name: describe_file(directory / name) for name in index.names})
        sync(directory)
        give_name(directory, index.position.step)
        point("checkpoint-named")
    except (OSError, RuntimeError) as error:
        raise cannot_write(directory / INDEX, error) from error


def give_name(directory: Path, step: int) -> None:
    """Give a complete checkpoint its final name, in place of an earlier one of the same step.

    If the process dies between the two renamings, `mpidl.storage.checkpoints.sweep` restores a checkpoint of this step.
    """
    target = directory.parent / str(step)
    replaced = set_aside(target, "replaced") if os.path.lexists(target) else None
    directory.rename(target)
    sync(target.parent)
    if replaced is not None:
        remove(replaced)


def _map(file: h5py.File, layout: Layout, shards: Sequence[Described]) -> None:
    """Present the shards' vectors as tensors."""
    parts: dict[str, list[tuple[int, Slice]]] = {name: [] for name in layout.shapes}
    for number, shard in enumerate(shards):
        for part in layout.within(Range(*shard.range)):
            parts[part.name].append((number, part))
    paths = places(layout.shapes)
    for vector, dtype in shards[0].vectors.items():
        for name, shape in layout.shapes.items():
            virtual = h5py.VirtualLayout(shape, dtype)
            for number, part in parts[name]:
                held = Range(*shards[number].range)
                source = h5py.VirtualSource(shard_file(number), vector, (held.size,), dtype)
                first = part.start - held.start
                virtual[part.box.slices(Box.whole(shape))] = source[first : first + part.size]
            file.create_virtual_dataset(f"{vector}/{paths[name]}", virtual)
