"""The trained values that a model begins with: ``model.initial``."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from mpidl.errors import MpidlError, UsageError, quoted
from mpidl.nn.model import CompleteModel
from mpidl.parameters import Box, Layout, Range
from mpidl.storage.tensor_files import open_file


class Initial:
    """The values that a file has for the tensors of a model; its constants and buffers take theirs at once.

    Raise UsageError if the file (see `mpidl.storage.tensor_files.open_file`) can't be read, lacks a tensor, or has one
    too many or of another shape.
    """

    def __init__(self, path: Path, model: CompleteModel) -> None:
        self._layout, self._dtype = model.layout, model.dtype
        try:
            self._file = open_file(path)
        except MpidlError as error:
            raise UsageError(f"model.initial: {error}") from error
        if model.tables:
            tables = f"the model has tables, such as {quoted(model.tables[0].name)}, whose rows begin anew"
            raise self._error(f"{tables}; --resume goes on with those of a run")
        # A tensor that parts of a model share may be in the file under one of its names only.
        names = {tensor.name: [tensor.name] for tensor in self._layout}
        for alias, name in model.aliases.items():
            names[name].append(alias)
        found = self._file.shapes
        self._names = {name: next((each for each in others if each in found), name) for name, others in names.items()}
        constants, buffers = model.constants(), model.buffers()
        shapes = {self._names[tensor.name]: tensor.shape for tensor in self._layout}
        beside = {name: array.shape for name, array in {**constants, **buffers}.items()}
        self._check(shapes, beside, model.aliases)
        for present, load in ((constants, model.load_constants), (buffers, model.load_buffers)):
            if any(name in found for name in present):
                load({name: self._read(name) if name in found else array for name, array in present.items()})

    def _check(
        self, shapes: dict[str, tuple[int, ...]], beside: dict[str, tuple[int, ...]], aliases: Iterable[str]
    ) -> None:
        """Raise UsageError unless the file has all of `shapes`, and nothing but these, `beside` and `aliases`."""
        found = self._file.shapes
        missing = [name for name in shapes if name not in found]
        strange = [name for name in found if name not in {*shapes, *beside, *aliases, *self._names}]
        for name in missing:
            raise self._error(f"no tensor {name!r}, which the model has{_nearest(name, strange)}")
        for name in strange:
            raise self._error(f"a tensor {name!r}, which the model lacks{_nearest(name, [*shapes, *beside])}")
        for name, shape in {**shapes, **beside}.items():
            if name in found and found[name] != shape:
                raise self._error(f"tensor {name!r} has the shape {found[name]}, the model's {shape}")

    def read(self, whole: Range, layout: Layout | None = None) -> np.ndarray:
        """Return the values of the parameters [start, stop), shape (whole.size,), in the model's dtype.

        Only the parts of tensors that the range consists of are read, where the file's format allows it. `layout` is
        that of the flat vector, by default the model's own. Raise UsageError if a tensor can't be read, or is not of
        floats.
        """
        values = np.empty(whole.size, self._dtype)
        for place in (layout or self._layout).within(whole):
            name = self._names[place.name]
            tensor = self._read(name, place.box)
            if tensor.dtype.kind != "f":
                raise self._error(f"tensor {name!r} is of {tensor.dtype}, expected floats")
            values[slice(*place.range.shift(-whole.start))] = tensor.reshape(-1)
        return values

    def _read(self, name: str, box: Box | None = None) -> np.ndarray:
        try:
            return self._file.read(name) if box is None else self._file.part(name, box)
        except UsageError as error:
            raise UsageError(f"model.initial: {error}") from error
        except Exception as error:  # each library has errors of its own
            raise self._error(f"tensor {name!r} can't be read ({' '.join(str(error).split())})") from error

    def _error(self, text: str) -> UsageError:
        return UsageError(f"model.initial: {self._file.path}: {text}")


def _nearest(name: str, others: list[str]) -> str:
    close = difflib.get_close_matches(name, others, n=1, cutoff=0.0)
    return f"; the nearest name is {close[0]!r}" if close else ""
