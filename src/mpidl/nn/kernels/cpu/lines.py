"""Formulas over a few numbers, applied to lines of numbers: each vector is loaded, computed with and stored once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mpidl.nn.kernels.cpu.vectors import Number, Vectors

Formula = Callable[[Sequence[Any]], Sequence[Any]]


def lines(formula: Formula, arguments: int, add: bool = False) -> Any:
    """Return a function, to be called from compiled code, that applies a formula number by number.

    Its signature is ``(source, (first, apart, further), target, (start, apart, further), repeats, length)``. The lines
    of the formula's arguments begin at element `first` of the array `source`, `apart` from one argument to the next;
    those of the results likewise in `target`. The next time, all begin `further` on.

    Parameters
    ----------
    formula : callable
        Of a sequence of numbers; returns others. It is made of sums, differences and products.
    arguments : int
        How many it takes.
    add : bool
        Whether results are added to what is there.
    """

    @intrinsic
    def apply(context, source, source_at, target, target_at, repeats, length):  # type: ignore[no-untyped-def]
        signature = types.void(source, source_at, target, target_at, types.intp, types.intp)

        def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
            vectors = Vectors(context, builder, signature.args[0].dtype)
            source, target = (_Lines(context, builder, signature.args[i], *values[i : i + 2]) for i in (0, 2))
            repeats, length = values[4:]
            with cgutils.for_range(builder, repeats) as repeat:

                def transform(place: Any, mask: Any) -> None:
                    given = [
                        Number(vectors, vectors.load(each, mask))
                        for each in source.addresses(repeat.index, place, arguments)
                    ]
                    results = formula(given)
                    places = target.addresses(repeat.index, place, len(results))
                    for result, each in zip(results, places, strict=True):
                        total = result + Number(vectors, vectors.load(each, mask)) if add else result
                        vectors.store(total.value, each, mask)

                vectors.each(length, transform)
            return context.get_dummy_value()

        return signature, generate

    return apply


class _Lines:
    """Where lines lie, in the code that is being generated."""

    def __init__(self, context: Any, builder: Any, kind: Any, array: Any, at: Any) -> None:
        self._builder, self._bytes = builder, kind.dtype.bitwidth // 8
        first, self._apart, self._further = (self._scaled(each) for each in cgutils.unpack_tuple(builder, at, 3))
        data = context.make_array(kind)(context, builder, array).data
        self._start = builder.add(builder.ptrtoint(data, first.type), first)

    def addresses(self, repeat: Any, place: Any, count: int) -> list[Any]:
        """Return the addresses of what is at one place in so many lines."""
        builder = self._builder
        offset = builder.add(builder.mul(repeat, self._further), self._scaled(place))
        found = [builder.add(self._start, offset)]
        while len(found) < count:
            found.append(builder.add(found[-1], self._apart))
        return found

    def _scaled(self, elements: Any) -> Any:
        return self._builder.mul(elements, elements.type(self._bytes))
