"""Files of named tensors in common formats, for exported models and for initial parameters."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from mpidl.data.arrays import npy_header
from mpidl.errors import MpidlError, UsageError, kind_of, quoted, shown
from mpidl.extras import require
from mpidl.parameters import Box
from mpidl.paths import whole
from mpidl.storage.checkpoint import BUFFERS, CONSTANTS, Checkpoint
from mpidl.storage.checkpoints import checkpoint_of
from mpidl.storage.files import INDEX
from mpidl.storage.table_files import IDS, ROWS, SavedTable, saved_tables

Shape = tuple[int, ...]

#: Suffixes by format; files are written with the first.
SUFFIXES = {"safetensors": (".safetensors",), "npz": (".npz",), "torch": (".pt", ".pth")}


#: Bytes of a name in an archive, without its suffix.
LONGEST = 65_535 - len(".npy")
#: The entry of a file of safetensors that is none of its tensors.
METADATA = "__metadata__"


class TensorFile(NamedTuple):
    """A file of tensors that are read on demand: `part` returns a box of the tensor of a name as an array.

    Formats other than ``.npz`` read only that box. `tables` are those of a run.
    """

    path: Path
    shapes: Mapping[str, Shape]
    part: Callable[[str, Box], np.ndarray]
    tables: Mapping[str, SavedTable] = MappingProxyType({})

    def read(self, name: str) -> np.ndarray:
        """Return a tensor as an array."""
        return self.part(name, Box.whole(self.shapes[name]))


def save(path: Path, kind: str, tensors: Mapping[str, np.ndarray], about: Mapping[str, str]) -> None:
    """Write a file of tensors in a format of `SUFFIXES`; it appears, or replaces another, once it is complete.

    Several names of one tensor have the same array. Safetensors also stores `about`, the origin of the tensors. Raise
    UsageError if the format's package isn't installed, or the file can't be written.
    """
    for name in tensors:
        archived = "\0" not in name and len(name.encode()) <= LONGEST
        if (kind == "npz" and not archived) or (kind == "safetensors" and name == METADATA):
            others = " or ".join(each for each in SUFFIXES if each != kind)
            raise UsageError(f"{path}: {kind} can't have a tensor named {quoted(name)}, expected {others}")
    write: Callable[..., object]
    if kind == "safetensors":
        write = partial(require("safetensors.numpy", "export").save_file, metadata=dict(about))
    else:
        write = _save_torch if kind == "torch" else _save_npz
    contiguous = {id(array): np.ascontiguousarray(array).reshape(array.shape) for array in tensors.values()}
    with whole(path) as unfinished:
        try:
            write({name: contiguous[id(array)] for name, array in tensors.items()}, unfinished)
        except MpidlError:
            raise
        except Exception as error:  # each library has errors of its own
            raise OSError(" ".join(str(error).split()) or type(error).__name__) from error


def _save_npz(tensors: Mapping[str, np.ndarray], path: Path) -> None:
    # np.savez takes names as keyword arguments, and has some of its own.
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in tensors.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def _save_torch(tensors: Mapping[str, np.ndarray], path: Path) -> None:
    torch = require("torch", "torch")
    from mpidl.torch.arrays import put_together
    from mpidl.torch.module_state import with_extra_states

    converted = {id(array): torch.from_numpy(array) for array in tensors.values()}
    named = {name: converted[id(array)] for name, array in tensors.items()}
    torch.save(with_extra_states(put_together(named)), path)


def open_file(path: Path) -> TensorFile:
    """Open a file of tensors: .safetensors, .npz, a state_dict of PyTorch (.pt, .pth), a run or one of its checkpoints.

    Raises
    ------
    UsageError
        It doesn't exist, has another format, or is damaged; or its format's package isn't installed.
    """
    if path.is_dir():
        return _of_checkpoint(Checkpoint(path) if (path / INDEX).exists() else checkpoint_of(path))
    if not path.is_file():
        raise UsageError(f"{path}: {'not a file' if path.exists() else 'no such file'}")
    kind = next((kind for kind, suffixes in SUFFIXES.items() if path.suffix in suffixes), None)
    if kind is None:
        known = ", ".join(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)
        raise UsageError(f"{path}: expected {known} or the directory of a run")
    try:
        return {"safetensors": _open_safetensors, "npz": _open_npz, "torch": _open_torch}[kind](path)
    except MpidlError:
        raise
    except Exception as error:  # each library has errors of its own
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"{path}: not a readable {path.suffix} file ({shown(reason, 100)})") from error


def _of_checkpoint(checkpoint: Checkpoint) -> TensorFile:
    members: dict[str, str] = {}
    shapes: dict[str, Shape] = {}
    for group in (checkpoint.trained, CONSTANTS):
        for name, dataset in checkpoint.datasets(group):
            members[name], shapes[name] = dataset.name, dataset.shape
    buffers, tables = checkpoint.kept_by(0, BUFFERS), saved_tables(checkpoint)
    for name, saved in tables.items():
        shapes |= {f"{name}.{IDS}": (len(saved),), f"{name}.{ROWS}": (len(saved), saved.spec.dimension)}

    def part(name: str, box: Box) -> np.ndarray:
        if name in buffers:
            return buffers[name][_slices(box)]
        return checkpoint.part(members[name], _slices(box))

    return TensorFile(checkpoint.path, shapes | {name: values.shape for name, values in buffers.items()}, part, tables)


def _slices(box: Box) -> tuple[slice, ...]:
    """Return the slices that select a box of a whole tensor."""
    return tuple(slice(*each) for each in box.ranges)


def _open_safetensors(path: Path) -> TensorFile:
    file = require("safetensors", "export").safe_open(path, framework="numpy")
    slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118

    def part(name: str, box: Box) -> np.ndarray:
        if (found := slices[name].get_dtype()) not in ("F16", "F32", "F64", "I64", "I32", "U8", "BOOL"):
            raise UsageError(f"{path}: tensor {name!r} is of {found}, expected floats of 16, 32 or 64 bits")
        return np.asarray(slices[name][_slices(box)] if box.ranges else file.get_tensor(name))

    return TensorFile(path, {name: tuple(found.get_shape()) for name, found in slices.items()}, part)


def _open_npz(path: Path) -> TensorFile:
    shapes = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                shape, dtype = npy_header(file)
            if prod(shape) * dtype.itemsize > member.file_size:
                raise ValueError(f"{member.filename} has fewer values than its shape {shape} says")
            shapes[member.filename.removesuffix(".npy")] = shape

    def part(name: str, box: Box) -> np.ndarray:
        with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as file:
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False)[_slices(box)])

    return TensorFile(path, shapes, part)


def _open_torch(path: Path) -> TensorFile:
    torch = require("torch", "torch")
    from mpidl.torch.arrays import as_array, taken_apart
    from mpidl.torch.module_state import is_extra_state

    try:
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # each kind of file has another
        if not re.search("Unsupported global|TorchScript", str(error)):
            raise
        expected = "expected a state_dict, as by torch.save(module.state_dict(), ...)"
        raise UsageError(f"{path}: a whole module or other objects, never unpickled here, {expected}") from None
    if not isinstance(loaded, Mapping):
        raise UsageError(f"{path}: {kind_of(loaded)}, expected a state_dict: tensors by name")
    tensors: dict[str, Any] = {}
    for name, tensor in loaded.items():
        if is_extra_state(name):
            continue
        if not isinstance(tensor, torch.Tensor):
            inner = [f", such as its {key!r} alone" for key, each in loaded.items() if isinstance(each, Mapping)][:1]
            expected = "expected a state_dict: tensors by name"
            raise UsageError(f"{path}: {name!r} is {kind_of(tensor)}, {expected}{''.join(inner)}")
        tensors |= taken_apart(name, tensor.detach())
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return TensorFile(path, shapes, lambda name, box: as_array(tensors[name][_slices(box)]))
