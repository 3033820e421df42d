"""Records of a file of lines as columns of NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from mpidl.extras import require
from mpidl.history.lines import decoded
from mpidl.paths import open_regular

#: Objects nested more deeply than this are a column of objects.
DEPTH = 8
#: Bytes of lines that are decoded at a time.
BLOCK = 1 << 18

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
    """

    def __init__(self, content: bytes = b"") -> None:
        gathered = _Gathered()
        end = 0
        while end < (size := content.rfind(b"\n") + 1):
            begin, end = end, content.find(b"\n", min(end + BLOCK, size - 1)) + 1
            gathered.add([each for each in decoded(content[begin:end]) if type(each) is dict])
        self.rows = gathered.rows
        self._arrays = {name: _array(values) for name, values in gathered.columns.items()}

    @classmethod
    def read(cls, file: Path) -> Columns:
        """Return the records of a file of JSON lines; none if there is no file.

        Lines that are no record are left out, such as one that is being written, or that a crash has cut off.
        """
        try:
            with open_regular(file) as lines:
                content = lines.read()
        except FileNotFoundError:
            return cls()
        return cls(content)

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


class _Gathered:
    """The values of records, figure by figure, with None for those that a record doesn't have."""

    def __init__(self) -> None:
        self.rows = 0
        self.columns: dict[str, list[Any]] = {}

    def add(self, records: Sequence[dict[str, Any]]) -> None:
        """Add records, few enough to stay in the processor's cache."""
        found = _by_figure(records)
        for name in found:
            self.columns.setdefault(name, [None] * self.rows)
        for name, column in self.columns.items():
            column += found.get(name) or [None] * len(records)
        self.rows += len(records)


def _by_figure(records: Sequence[dict[str, Any]], prefix: str = "", depth: int = 0) -> dict[str, Sequence[Any]]:
    """Return the values of each figure, by dotted names, of objects that are nested `depth` times in records."""
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
        if dict in kinds and depth < DEPTH:
            inner = [each if type(each) is dict else {} for each in values]
            found |= _by_figure(inner, f"{prefix}{name}.", depth + 1)
            if kinds <= {dict, type(None)}:
                continue
            values = [None if type(each) is dict else each for each in values]
        found[prefix + name] = values
    return found


def _array(values: list[Any]) -> np.ndarray:
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


def _padded(lists: Sequence[Sequence[float | None]]) -> np.ndarray:
    """Return lists of numbers as rows."""
    lengths = np.array(list(map(len, lists)), int)
    found = np.zeros((len(lists), lengths.max(initial=0)))
    found[np.arange(found.shape[1]) < lengths[:, None]] = np.array(list(chain.from_iterable(lists)), float)
    return found
