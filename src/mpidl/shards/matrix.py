"""Operations with vectors that travel, and on square matrices of which each shard has the rows of its parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from mpidl.device import from_host, to_host
from mpidl.parameters.ranges import Range
from mpidl.shards.vectors import Pieces, Result, Vectors

#: Elements of a matrix that are updated at a time, so that they stay in the cache.
BLOCK = 1 << 16


class Gather(Struct, frozen=True):
    """The elements of a vector, or those of a range: pieces, a copy of each shard's part."""

    vector: str
    part: Range | None = None

    def carry_out(self, vectors: Vectors) -> list[Result]:
        own = vectors.range if self.part is None else vectors.range.intersect(self.part)
        return [{} if own is None else {own.start: np.array(to_host(vectors.view(self.vector, own)))}]


class Scatter(Struct, frozen=True, eq=False):
    """The elements of target from `start` on = `values`, shape (n,)."""

    target: str
    start: int
    values: NDArray[Any]

    def carry_out(self, vectors: Vectors) -> list[Result]:
        own = vectors.range.intersect(Range(self.start, self.start + len(self.values)))
        if own is not None:
            target = vectors.view(self.target, own)
            from_host(self.values[slice(*own.shift(-self.start))].astype(target.dtype), target)
        return []


class Product(Struct, frozen=True, eq=False):
    """target = matrix @ values, given all elements of `values`, shape (n,)."""

    target: str
    matrix: str
    values: NDArray[np.float64]

    def carry_out(self, vectors: Vectors) -> list[Result]:
        rows = vectors[self.matrix]
        vectors[self.target][:] = rows @ _copied_like(rows, self.values)
        return []


class RankUpdate(Struct, frozen=True, eq=False):
    """target = factor * target + columns @ weights @ columns.T for a matrix, given all elements of the columns.

    Attributes
    ----------
    columns : array, shape (n, k)
    weights : array, shape (k, k)
        A symmetric matrix.
    """

    target: str
    factor: float
    columns: NDArray[np.float64]
    weights: NDArray[np.float64]

    def carry_out(self, vectors: Vectors) -> list[Result]:
        rows, start = vectors[self.target], vectors.start
        left = _copied_like(rows, self.columns[start : start + len(rows)] @ self.weights)
        right = _copied_like(rows, np.ascontiguousarray(self.columns.T))
        size = max(1, BLOCK // rows.shape[1])
        for first in range(0, len(rows), size):
            block = rows[first : first + size]
            block *= self.factor
            block += left[first : first + size] @ right
        return []


class Identity(Struct, frozen=True):
    """target = the identity matrix."""

    target: str

    def carry_out(self, vectors: Vectors) -> list[Result]:
        rows = vectors[self.target]
        rows.fill(0)
        rows.reshape(-1)[vectors.start :: rows.shape[1] + 1][: len(rows)] = 1
        return []


def whole(pieces: Pieces) -> NDArray[np.float64]:
    """Return the elements of a vector, given the pieces of all shards."""
    return np.concatenate([pieces[start] for start in sorted(pieces)], dtype=np.float64)


def nbytes(item: object) -> int:
    """Return the bytes of the vectors that travel with an operation or a result."""
    arrays = item.values() if isinstance(item, dict) else (getattr(item, name, None) for name in ("values", "columns"))
    return sum(each.nbytes for each in arrays if each is not None)


def _copied_like(rows: Any, values: NDArray[np.float64]) -> Any:
    """Return a copy of a host array where the rows of a matrix are."""
    copy = np.empty_like(rows, shape=values.shape)
    from_host(values, copy)
    return copy
