"""Products of matrices: by a BLAS, and of those so small that a BLAS would spend its time on packing them.

There a tile of the result stays in vector registers while at most `DEPTH` terms are summed. Vectors are loaded from
`b`, and single numbers from `a`: only the rows of `b` and of the result must be contiguous.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from mpidl.jit import jit
from mpidl.nn.kernels.cpu.simd import BYTES, VectorBuilder, phi

#: Rows of the largest tile, which is two vectors wide: it leaves enough registers for the factors.
ROWS = 12 if BYTES == 64 else 6
#: Rows of a smaller tile. The remaining rows are computed one by one.
FEW = 4
#: Number of terms that are summed at a time, so that the part of `b` that they need stays in the L1 cache.
DEPTH = 128


def matmul(a: Any, b: Any, out: Any) -> None:
    """Set `out` to the product of two matrices or of pairs of matrices; rows or columns of each are contiguous."""
    np.matmul(a, b, out=out)


def multiply(a: Any, b: Any, out: Any, add: bool = False) -> None:
    """Set `out` to the product of two matrices or of pairs of matrices, or add the product to `out`.

    Parameters
    ----------
    a : array (n, k) or (pairs, n, k)
        May have any strides.
    b : array (k, m) or (pairs, k, m)
        Same dtype, float32 or float64. Its rows and those of `out` are contiguous.
    out : array (n, m) or (pairs, n, m)
    add : bool
        Whether the product is added to `out`.
    """
    if out.ndim == 2:
        a, b, out = a[None], b[None], out[None]
    assert b.strides[2] == out.strides[2] == out.itemsize
    _compiled(out.dtype)(a, b, out, add)


@cache
def _compiled(dtype: np.dtype) -> Any:
    """Return the loops for one dtype, compiled once for arrays of any strides."""
    loops: Any = jit(_multiply)
    array = types.Array(numba.from_dtype(dtype), 3, "A")
    loops.compile((array, array, array, types.boolean))
    loops.disable_compile()
    return loops


def _multiply(a, b, out, add):  # type: ignore[no-untyped-def]
    pairs, _, m = out.shape
    lanes = BYTES // out.itemsize
    for pair in range(pairs):
        for k in range(0, b.shape[1], DEPTH):
            count = min(DEPTH, b.shape[1] - k)
            more = add or k > 0
            j = 0
            while j < m:
                # Two vectors of columns or, at the end, one that may be partly filled.
                width = 2 * lanes if m - j >= 2 * lanes else min(lanes, m - j)
                if width == 2 * lanes:
                    _wide_column(a, b, out, pair, j, k, count, more)
                else:
                    _narrow_column(a, b, out, pair, j, k, count, more, width)
                j += width


def _tile(rows: int, vectors: int) -> Any:
    """Return an intrinsic that computes a tile of `rows` x `vectors` vectors; a single vector may be partly filled."""

    @intrinsic
    def tile(context, a, b, out, pair, i, j, k, count, add, lanes):  # type: ignore[no-untyped-def]
        signature = types.void(a, b, out, *[types.intp] * 5, types.boolean, types.intp)

        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            pair, i, j, k, count, add, lanes = arguments[3:]
            simd = VectorBuilder(context, builder, signature.args[2].dtype)
            left, right, result = (
                _Matrix(context, builder, kind, value, pair)
                for kind, value in zip(signature.args[:3], arguments[:3], strict=True)
            )
            mask = simd.mask(lanes) if vectors == 1 else None
            starts = [x * simd.lanes for x in range(vectors)]
            places = [[result.at(i, y, j, start) for start in starts] for y in range(rows)]
            before, adding = builder.block, builder.append_basic_block("adding")
            loop, end = builder.append_basic_block("loop"), builder.append_basic_block("end")
            builder.cbranch(builder.trunc(add, ir.IntType(1)), adding, loop)

            builder.position_at_end(adding)
            given = [[simd.load(place, mask) for place in row] for row in places]
            builder.branch(loop)

            builder.position_at_end(loop)
            term = phi(builder, k.type, {before: k.type(0), adding: k.type(0)})
            kind, nothing = simd.type, simd.type(None)
            sums = [[phi(builder, kind, {before: nothing, adding: value}) for value in row] for row in given]
            here = builder.add(k, term)
            columns = [simd.load(right.at(here, 0, j, start), mask) for start in starts]
            new = []
            for y, row in enumerate(sums):
                number = simd.broadcast(left.at(i, y, here, 0))
                new.append([simd.multiply_add(number, *pair) for pair in zip(columns, row, strict=True)])
            following = builder.add(term, k.type(1))
            term.add_incoming(following, loop)
            for row, values in zip(sums, new, strict=True):
                for each, value in zip(row, values, strict=True):
                    each.add_incoming(value, loop)
            builder.cbranch(builder.icmp_signed("<", following, count), loop, end)

            builder.position_at_end(end)
            for row, values in zip(places, new, strict=True):
                for place, value in zip(row, values, strict=True):
                    simd.store(value, place, mask)
            return context.get_dummy_value()

        return signature, generate

    return tile


class _Matrix:
    """Generates the addresses of one matrix in an array of matrices."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any, pair: Any) -> None:
        array = context.make_array(kind)(context, builder, value)
        self._builder, self._strides = builder, [builder.extract_value(array.strides, i) for i in range(3)]
        start = builder.ptrtoint(array.data, pair.type)
        self._start = builder.add(start, builder.mul(pair, self._strides[0]))

    def at(self, row: Any, more_rows: int, column: Any, more_columns: int) -> Any:
        """Return the address of element (row + more_rows, column + more_columns); the latter terms are constants."""
        builder, number = self._builder, row.type
        down = builder.mul(builder.add(row, number(more_rows)), self._strides[1])
        across = builder.mul(builder.add(column, number(more_columns)), self._strides[2])
        return builder.add(builder.add(self._start, down), across)


_wide_tile, _wide_few, _wide_row = _tile(ROWS, 2), _tile(FEW, 2), _tile(1, 2)
_narrow_tile, _narrow_few, _narrow_row = _tile(ROWS, 1), _tile(FEW, 1), _tile(1, 1)


@jit
def _wide_column(a, b, out, pair, j, k, count, add):  # type: ignore[no-untyped-def]
    i, n = 0, out.shape[1]
    while n - i >= ROWS:
        _wide_tile(a, b, out, pair, i, j, k, count, add, 0)
        i += ROWS
    while n - i >= FEW:
        _wide_few(a, b, out, pair, i, j, k, count, add, 0)
        i += FEW
    while i < n:
        _wide_row(a, b, out, pair, i, j, k, count, add, 0)
        i += 1


@jit
def _narrow_column(a, b, out, pair, j, k, count, add, width):  # type: ignore[no-untyped-def]
    i, n = 0, out.shape[1]
    while n - i >= ROWS:
        _narrow_tile(a, b, out, pair, i, j, k, count, add, width)
        i += ROWS
    while n - i >= FEW:
        _narrow_few(a, b, out, pair, i, j, k, count, add, width)
        i += FEW
    while i < n:
        _narrow_row(a, b, out, pair, i, j, k, count, add, width)
        i += 1
