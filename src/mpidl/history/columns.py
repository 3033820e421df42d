"""Records of a file of lines as columns of NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np

from mpidl.extras import require
from mpidl.history.lines import Lines

_NUMBERS = {int, float, bool, type(None)}


class Columns(Mapping[str, np.ndarray]):
    """The records of a run's file, each figure as an array with one element, or one row, for each record.

    Figures of nested objects have dotted names, such as ``"staleness.mean"``. An array of numbers has the type float64,
    and NaN where a record doesn't have the figure or it is null. Lists of numbers, such as ``"staleness_histogram"``,
    are an array (records, longest list) of float64, filled up with zeros. Anything else is an array of objects, with
    None where a record has nothing.

    Attributes
    ----------
    rows : int
        Number of records.
    skipped : int
        Number of complete lines that are invalid and were skipped.
    notes : list of str
        Notes on these, and on a file that can't be read.
    """

    def __init__(self, lines: Lines, blocks: Iterable[Sequence[dict[str, Any]]] | None = None) -> None:
        """Gather what `lines` reads, or blocks of records that it has read."""
        self.rows = 0
        # Arrays of each figure, a block of records each, behind the rows that have no value before the first.
        gathered: dict[str, list[np.ndarray]] = {}
        for records in lines.blocks() if blocks is None else blocks:
            found = {name: _array(values) for name, values in _by_figure(records).items()}
            for name in found:
                gathered.setdefault(name, [_nothing(self.rows)] if self.rows else [])
            for name, arrays in gathered.items():
                arrays.append(found[name] if name in found else _nothing(len(records)))
            self.rows += len(records)
        self._arrays = {name: _joined(arrays) for name, arrays in gathered.items()}
        self.skipped, self.notes = lines.skipped, lines.notes

    def known(self, name: str) -> np.ndarray:
        """Return which records have a finite number of this name."""
        found = self.get(name)
        if found is None or found.ndim != 1 or found.dtype.kind != "f":
            return np.zeros(self.rows, bool)
        finite: np.ndarray = np.isfinite(found)
        return finite

    def last(self, name: str) -> float | None:
        """Return the last finite number of this name; None if no record has one."""
        known = self.known(name)
        return float(self[name][known][-1]) if known.any() else None

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"<{self.rows} records of {', '.join(self)}>"

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each record; lists stay lists."""
        pandas = require("pandas", "pandas")
        return pandas.DataFrame(
            {name: list(values) if values.ndim > 1 else values for name, values in self.items()},
            index=range(self.rows),
        )


def _by_figure(records: Sequence[dict[str, Any]], prefix: str = "") -> dict[str, Sequence[Any]]:
    """Return the values of each figure of records, or of objects in them, by dotted names."""
    found: dict[str, Sequence[Any]] = {}
    names = dict.fromkeys(chain.from_iterable(records))
    alike = all(map(len(names).__eq__, map(len, records)))
    columns: Iterable[Sequence[Any]]
    if alike and len(set(map(tuple, records))) == 1:
        columns = zip(*map(dict.values, records), strict=True)
    else:
        columns = ([record.get(name) for record in records] for name in names)
    for name, values in zip(names, columns, strict=True):
        kinds = set(map(type, values))
        if dict in kinds:
            inner = [each if type(each) is dict else {} for each in values]
            found |= _by_figure(inner, f"{prefix}{name}.")
            if kinds <= {dict, type(None)}:
                continue
            values = [None if type(each) is dict else each for each in values]
        found[prefix + name] = values
    return found


def _array(values: Sequence[Any]) -> np.ndarray:
    kinds = set(map(type, values))
    with suppress(OverflowError):  # integers of hundreds of digits
        if kinds <= _NUMBERS:
            return np.array(values, float)
        if kinds <= {list, type(None)}:
            lists = [each or () for each in values]
            if set(map(type, chain.from_iterable(lists))) <= _NUMBERS:
                return _padded(lists)
    found = np.empty(len(values), object)
    found[:] = values
    return found


def _nothing(records: int) -> np.ndarray:
    return np.full(records, np.nan)


def _joined(blocks: Sequence[np.ndarray]) -> np.ndarray:
    """Return one array of blocks of the same figure; those without a value may be of any kind."""
    if len(blocks) == 1:
        return blocks[0]
    own = [each for each in blocks if each.dtype == object or each.ndim == 2 or not np.isnan(each).all()]
    kinds = {(each.dtype == object, each.ndim) for each in own}
    if kinds <= {(False, 1)}:
        return np.concatenate(blocks)
    stops = np.cumsum([len(each) for each in blocks])
    lists = kinds == {(False, 2)}
    shape = (stops[-1], max(each.shape[1] for each in own)) if lists else stops[-1]
    found = np.zeros(shape) if lists else np.full(shape, None, object)
    for block, stop in zip(blocks, stops, strict=True):
        part = found[stop - len(block) : stop]
        if lists and block.ndim == 2:
            part[:, : block.shape[1]] = block
        elif not lists:
            part[:] = [None if each != each else each for each in block.tolist()] if block.ndim == 1 else list(block)
    return found


def _padded(lists: Sequence[Sequence[float | None]]) -> np.ndarray:
    """Return lists of numbers as rows."""
    lengths = np.array(list(map(len, lists)), int)
    found = np.zeros((len(lists), lengths.max(initial=0)))
    found[np.arange(found.shape[1]) < lengths[:, None]] = np.array(list(chain.from_iterable(lists)), float)
    return found
