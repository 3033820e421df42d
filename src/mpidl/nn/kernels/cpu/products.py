"""Products of matrices too small for a BLAS, which would pack them first: one after the other, in registers.

A tile of the result stays in vector registers while it sums over at most `DEPTH` terms. What it takes from `b` are
vectors, from `a` single numbers: only the rows of `b` and of the result have to be contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mpidl.jit import jit

#: Bytes of a vector, and rows of the largest tile of two vectors: it leaves registers for the factors.
BYTES, ROWS = (64, 12) if binding.get_host_cpu_features().get("avx512f", False) else (32, 6)
#: Rows of a smaller tile; what is left after these goes row by row.
FEW = 4
#: Terms that are summed at a time, so that what they need of `b` stays in the first-level cache.
DEPTH = 128


def multiply(a: Any, b: Any, out: Any, add: bool = False) -> None:
    """Set `out` to the product of matrices, or of as many pairs of them as there are; or add it.

    Parameters
    ----------
    a : array (n, k) or (pairs, n, k)
        Of any strides.
    b : array (k, m) or (pairs, k, m)
        Of the same dtype, float32 or float64; its rows, like those of `out`, are contiguous.
    out : array (n, m) or (pairs, n, m)
    add : bool
        Whether it is added to what `out` holds.
    """
    if out.ndim == 2:
        a, b, out = a[None], b[None], out[None]
    assert b.strides[2] == out.strides[2] == out.itemsize
    _compiled(out.dtype)(a, b, out, add)


@cache
def _compiled(dtype: np.dtype) -> Callable[..., None]:
    """Return the loops for one dtype, compiled once for arrays of whatever strides."""
    loops, array = jit(_multiply), types.Array(numba.from_dtype(dtype), 3, "A")
    loops.compile((array, array, array, types.boolean))
    loops.disable_compile()
    return loops


def _multiply(a, b, out, add):  # type: ignore[no-untyped-def]
    pairs, n, m = out.shape
    lanes = BYTES // out.itemsize
    for pair in range(pairs):
        for k in range(0, b.shape[1], DEPTH):
            count = min(DEPTH, b.shape[1] - k)
            more = add or k > 0
            j = 0
            while j < m:
                # Two vectors of columns or, at the end, one that may be a part.
                width = 2 * lanes if m - j >= 2 * lanes else min(lanes, m - j)
                if width == 2 * lanes:
                    _wide_column(a, b, out, pair, j, k, count, more)
                else:
                    _narrow_column(a, b, out, pair, j, k, count, more, width)
                j += width


def _tile(rows: int, vectors: int) -> Any:
    """Return what computes `rows` x `vectors` vectors of a product; of one vector, perhaps only the first lanes."""

    @intrinsic
    def tile(context, a, b, out, pair, i, j, k, count, add, lanes):  # type: ignore[no-untyped-def]
        signature = types.void(a, b, out, *[types.intp] * 5, types.boolean, types.intp)

        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            pair, i, j, k, count, add, lanes = arguments[3:]
            left, right, result = (
                _Matrix(context, builder, kind, value, pair)
                for kind, value in zip(signature.args[:3], arguments[:3], strict=True)
            )
            mask = _mask(builder, lanes, result.lanes) if vectors == 1 else None
            steps = range(rows)
            places = [[result.at(i, y, j, x * result.lanes) for x in range(vectors)] for y in steps]
            before, adding = builder.block, builder.append_basic_block("adding")
            loop, end = builder.append_basic_block("loop"), builder.append_basic_block("end")
            builder.cbranch(builder.trunc(add, ir.IntType(1)), adding, loop)

            builder.position_at_end(adding)
            given = [[result.load(place, mask) for place in line] for line in places]
            builder.branch(loop)

            builder.position_at_end(loop)
            term = _phi(builder, k.type, {before: k.type(0), adding: k.type(0)})
            nothing = result.vector(None)
            sums = [
                [_phi(builder, result.vector, {before: nothing, adding: value}) for value in line] for line in given
            ]
            here = builder.add(k, term)
            columns = [right.load(right.at(here, 0, j, x * right.lanes), mask) for x in range(vectors)]
            numbers = [left.spread(left.at(i, y, here, 0)) for y in steps]
            new = [
                [_fused(builder, numbers[y], column, sums[y][x]) for x, column in enumerate(columns)] for y in steps
            ]
            following = builder.add(term, k.type(1))
            term.add_incoming(following, loop)
            for line, values in zip(sums, new, strict=True):
                for phi, value in zip(line, values, strict=True):
                    phi.add_incoming(value, loop)
            builder.cbranch(builder.icmp_signed("<", following, count), loop, end)

            builder.position_at_end(end)
            for line, values in zip(places, new, strict=True):
                for place, value in zip(line, values, strict=True):
                    result.store(value, place, mask)
            return context.get_dummy_value()

        return signature, generate

    return tile


class _Matrix:
    """One of the matrices of an array, in the code that is being generated."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any, pair: Any) -> None:
        array = context.make_array(kind)(context, builder, value)
        self._builder, self._strides = builder, cgutils.unpack_tuple(builder, array.strides, 3)
        self._real = context.get_data_type(kind.dtype)
        self._bytes = kind.dtype.bitwidth // 8
        self.lanes = BYTES // self._bytes
        self.vector = ir.VectorType(self._real, self.lanes)
        start = builder.ptrtoint(array.data, pair.type)
        self._start = builder.add(start, builder.mul(pair, self._strides[0]))

    def at(self, row: Any, more_rows: int, column: Any, more_columns: int) -> Any:
        """Return an element's address; `more_` are constants."""
        builder, number = self._builder, row.type
        down = builder.mul(builder.add(row, number(more_rows)), self._strides[1])
        across = builder.mul(builder.add(column, number(more_columns)), self._strides[2])
        return builder.add(builder.add(self._start, down), across)

    def load(self, address: Any, mask: Any) -> Any:
        """Return the vector at an address, zero where the mask is."""
        place = self._builder.inttoptr(address, self.vector.as_pointer())
        if mask is None:
            return self._builder.load(place, align=self._bytes)
        alignment = ir.IntType(32)
        kind = ir.FunctionType(self.vector, [place.type, alignment, mask.type, self.vector])
        arguments = [place, alignment(self._bytes), mask, self.vector(None)]
        return self._builder.call(self._intrinsic("llvm.masked.load", kind), arguments)

    def store(self, value: Any, address: Any, mask: Any) -> None:
        """Store a vector at an address, where the mask isn't zero."""
        place = self._builder.inttoptr(address, self.vector.as_pointer())
        if mask is None:
            self._builder.store(value, place, align=self._bytes)
            return
        alignment = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [self.vector, place.type, alignment, mask.type])
        self._builder.call(self._intrinsic("llvm.masked.store", kind), [value, place, alignment(self._bytes), mask])

    def spread(self, address: Any) -> Any:
        """Return a vector of equal elements: what is at an address."""
        number = self._builder.load(self._builder.inttoptr(address, self._real.as_pointer()), align=self._bytes)
        return _spread(self._builder, number, self.lanes)

    def _intrinsic(self, name: str, kind: Any) -> Any:
        suffix = f".v{self.lanes}f{8 * self._bytes}.p0"
        return cgutils.get_or_insert_function(self._builder.module, kind, name + suffix)


def _mask(builder: Any, lanes: Any, width: int) -> Any:
    """Return a vector of bits, one in the first `lanes` of them."""
    numbers = ir.VectorType(lanes.type, width)(list(range(width)))
    return builder.icmp_signed("<", numbers, _spread(builder, lanes, width))


def _spread(builder: Any, value: Any, width: int) -> Any:
    """Return a vector of equal elements."""
    vector, index = ir.VectorType(value.type, width), ir.IntType(32)
    first = builder.insert_element(vector(ir.Undefined), value, index(0))
    return builder.shuffle_vector(first, vector(ir.Undefined), ir.VectorType(index, width)(None))


def _phi(builder: Any, kind: Any, values: dict[Any, Any]) -> Any:
    """Return what has a value that depends on the block that came before."""
    phi = builder.phi(kind)
    for block, value in values.items():
        phi.add_incoming(value, block)
    return phi


def _fused(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """Return x * y + z, in one instruction where there is one."""
    return builder.fadd(builder.fmul(x, y, flags=("contract",)), z, flags=("contract",))


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
