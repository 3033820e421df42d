"""The trained values that a model begins with: ``model.initial``."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mpidl.errors import MpidlError, UsageError, quoted
from mpidl.nn.model import CompleteModel
from mpidl.parameters import Box, Layout, Range
from mpidl.storage.table_files import BLOCK, IDS, ROWS
from mpidl.storage.tensor_files import open_file
from mpidl.tables.distinct import owner
from mpidl.tables.lookups import TableSpec

#: Most blocks in which rows are read: each reading of a file of NumPy's is one of the whole tensor.
BLOCKS = 16


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
        # A tensor that parts of a model share may be in the file under one of its names only.
        names = {tensor.name: [tensor.name] for tensor in self._layout}
        for alias, name in model.aliases.items():
            names[name].append(alias)
        found = self._file.shapes
        self._names = {name: next((each for each in others if each in found), name) for name, others in names.items()}
        self._tables = {spec.name: self._place(spec) for spec in model.tables}
        constants, buffers = model.constants(), model.buffers()
        shapes = {self._names[tensor.name]: tensor.shape for tensor in self._layout}
        for spec in model.tables:
            shapes |= self._shapes(spec)
        beside = {name: array.shape for name, array in {**constants, **buffers}.items()}
        self._check(shapes, beside, [*model.aliases, *(name for spec in model.tables for name in spec.aliases)])
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
            values[slice(*place.range.shift(-whole.start))] = self._floats(name, place.box).reshape(-1)
        return values

    def _floats(self, name: str, box: Box) -> np.ndarray:
        tensor = self._read(name, box)
        if tensor.dtype.kind != "f":
            raise self._error(f"tensor {name!r} is of {tensor.dtype}, expected floats")
        return tensor

    # Tables: a whole weight under one of its names, or ids and rows.

    def _place(self, spec: TableSpec) -> str:
        """Return the name of the tensor with a table's rows."""
        names = (spec.name, *spec.aliases, f"{spec.name}/weight", f"{spec.name}.{ROWS}")
        return next((name for name in names if name in self._file.shapes), spec.name)

    def _shapes(self, spec: TableSpec) -> dict[str, tuple[int, ...]]:
        """Return the shapes that the tensors with a table's rows are to have."""
        name, ids = self._tables[spec.name], f"{spec.name}.{IDS}"
        if name != f"{spec.name}.{ROWS}":
            return {name: (spec.rows or 0, spec.dimension)}
        (count, *_) = self._file.shapes.get(ids, (0,))
        return {ids: (count,), name: (count, spec.dimension)}

    def rows(self, spec: TableSpec, server: int, servers: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the ids of a server that the file has of a table, and their rows, block by block; UsageError as above.

        Raise MpidlError if a file of a run can't be read.
        """
        if (saved := self._file.tables.get(spec.name)) is not None:
            for block in saved.blocks(server, servers):
                yield spec.checked(block[IDS]), block[ROWS]
            return
        name, ids = self._tables[spec.name], None
        count = self._file.shapes[name][0]
        if name == f"{spec.name}.{ROWS}":
            try:
                ids = spec.checked(self._read(f"{spec.name}.{IDS}"))
            except UsageError as error:
                raise self._error(str(error)) from error
            if np.unique(ids).size < ids.size:
                raise self._error(f"two rows of an id in table {quoted(spec.name)}, expected one")
        width = Range(0, spec.dimension)
        yield from own_rows(lambda block: self._floats(name, Box((block, width))), count, spec, server, servers, ids)

    def _read(self, name: str, box: Box | None = None) -> np.ndarray:
        try:
            return self._file.read(name) if box is None else self._file.part(name, box)
        except UsageError as error:
            raise UsageError(f"model.initial: {error}") from error
        except Exception as error:  # each library has errors of its own
            raise self._error(f"tensor {name!r} can't be read ({' '.join(str(error).split())})") from error

    def _error(self, text: str) -> UsageError:
        return UsageError(f"model.initial: {self._file.path}: {text}")


class InitialValues:
    """The values with which a model begins: those of a file, if there is one, or its own.

    If its `own` count, rows of tables that the file lacks are those of its weights or else those of the source
    `trained`, if it has been trained before. Others are drawn.
    """

    def __init__(self, initial: Initial | None, model: CompleteModel, own: bool, trained: Any) -> None:
        self._initial, self._model, self._own, self._trained = initial, model, own, trained

    def __call__(self, whole: Range, layout: Layout | None = None) -> np.ndarray:
        """Return the parameters [start, stop) of a layout, by default the model's own, shape (whole.size,)."""
        return (self._model.initial if self._initial is None else self._initial.read)(whole, layout)

    def rows(self, spec: TableSpec, server: int, servers: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield ids of a server and their rows (n, dimension) in a table; the first ones of an id count."""
        if self._initial is not None:
            yield from self._initial.rows(spec, server, servers)
        weights = self._model.weights.first_rows() if self._own else {}
        if (weight := weights.get(spec.name)) is not None:
            yield from own_rows(lambda block: weight[slice(*block)], len(weight), spec, server, servers)
        elif self._trained is not None:
            number = [each.name for each in self._model.tables].index(spec.name)
            yield from self._trained.stored(number, server, servers)


def own_rows(
    read: Callable[[Range], np.ndarray], count: int, spec: TableSpec, server: int, servers: int,
    ids: np.ndarray | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:  # fmt: skip
    """Yield the ids of a server among `ids`, by default all up to `count`, and their rows, which `read` returns."""
    size = max(BLOCK, -(-count // BLOCKS))
    for start in range(0, count, size):
        block = Range(start, min(start + size, count))
        of_block = np.arange(*block) if ids is None else ids[slice(*block)]
        own = owner(of_block, servers) == server
        if spec.padding is not None:
            own &= of_block != spec.padding
        yield of_block[own], read(block)[own]


def _nearest(name: str, others: list[str]) -> str:
    close = difflib.get_close_matches(name, others, n=1, cutoff=0.0)
    return f"; the nearest name is {close[0]!r}" if close else ""
