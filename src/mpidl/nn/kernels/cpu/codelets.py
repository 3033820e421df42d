"""Codelets: straight-line formulas applied to rows of numbers, in vector registers from load to store.

The term is FFTW's (Frigo, Johnson 2005, The design and implementation of FFTW3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mpidl.nn.kernels.cpu.simd import Number, VectorBuilder

Formula = Callable[[Sequence[Any]], Sequence[Any]]


def codelet(formula: Formula, arguments: int, add: bool = False) -> Any:
    """Return a function, callable from compiled code only, that applies a formula to rows of numbers, elementwise.

    Its signature is ``(source, (start, stride, distance), target, (start, stride, distance), repeats, length)``.
    In repetition r, argument k is the row of `length` numbers of the array `source` that begins at element
    ``start + k * stride + r * distance``. The results are stored in `target` in the same way.

    Parameters
    ----------
    formula : callable
        Takes a sequence of numbers and returns another, by sums, differences and products.
    arguments : int
        Number of the formula's arguments.
    add : bool
        Whether the results are added to `target`.
    """

    @intrinsic
    def apply(context, source, source_layout, target, target_layout, repeats, length):  # type: ignore[no-untyped-def]
        signature = types.void(source, source_layout, target, target_layout, types.intp, types.intp)

        def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
            simd = VectorBuilder(context, builder, signature.args[0].dtype)
            source, target = (_StridedRows(context, builder, signature.args[i], *values[i : i + 2]) for i in (0, 2))
            repeats, length = values[4:]
            with cgutils.for_range(builder, repeats) as repeat:

                def transform(index: Any, mask: Any) -> None:
                    given = [
                        Number(simd, simd.load(each, mask)) for each in source.addresses(repeat.index, index, arguments)
                    ]
                    results = formula(given)
                    addresses = target.addresses(repeat.index, index, len(results))
                    for result, each in zip(results, addresses, strict=True):
                        total = result + Number(simd, simd.load(each, mask)) if add else result
                        simd.store(total.value, each, mask)

                simd.for_each(length, transform)
            return context.get_dummy_value()

        return signature, generate

    return apply


class _StridedRows:
    """Generates the addresses of rows in an array."""

    def __init__(self, context: Any, builder: Any, kind: Any, array: Any, layout: Any) -> None:
        self._builder, self._bytes = builder, kind.dtype.bitwidth // 8
        start, self._stride, self._distance = (self._scaled(builder.extract_value(layout, i)) for i in range(3))
        data = context.make_array(kind)(context, builder, array).data
        self._start = builder.add(builder.ptrtoint(data, start.type), start)

    def addresses(self, repeat: Any, index: Any, count: int) -> list[Any]:
        """Return the addresses of number `index` in `count` consecutive rows."""
        builder = self._builder
        offset = builder.add(builder.mul(repeat, self._distance), self._scaled(index))
        found = [builder.add(self._start, offset)]
        while len(found) < count:
            found.append(builder.add(found[-1], self._stride))
        return found

    def _scaled(self, elements: Any) -> Any:
        return self._builder.mul(elements, elements.type(self._bytes))
