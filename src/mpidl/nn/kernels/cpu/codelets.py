"""Codelets: straight-line formulas applied to rows of numbers, in vector registers from load to store.

The term is FFTW's (Frigo, Johnson 2005, The design and implementation of FFTW3). LLVM doesn't vectorise such code well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic

Formula = Callable[[Sequence[Any]], Sequence[Any]]

#: CPU features that the code may use, as configured in Numba.
FEATURES = binding.get_host_cpu_features().flatten() if config.CPU_FEATURES is None else config.CPU_FEATURES  # type: ignore[attr-defined]
#: Bytes of a vector. On machines with shorter vectors, LLVM splits each instruction in two.
BYTES = 64 if "+avx512f" in FEATURES else 32


def codelets(formulas: Mapping[int, tuple[Formula, int]], add: bool = False) -> Any:
    """Return a function, callable from compiled code only, that applies one of the formulas to rows of numbers.

    Its signature is ``(key, source, (start, stride, distance), target, (start, stride, distance), repeats, length)``.
    In repetition r, argument k of the formula is the row of `length` numbers of the array `source` that begins at
    element ``start + k * stride + r * distance``. The results are stored in `target` in the same way.

    Parameters
    ----------
    formulas : mapping of int to (callable, int)
        By its key, each formula, which takes a sequence of numbers and returns another, by sums, differences and
        products; and the number of its arguments.
    add : bool
        Whether the results are added to `target`.
    """

    @intrinsic
    def apply(context, key, source, source_layout, target, target_layout, repeats, length):  # type: ignore[no-untyped-def]
        number = types.intp
        signature = types.void(number, source, source_layout, target, target_layout, number, number)

        def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
            simd = VectorBuilder(context, builder, signature.args[1].dtype)
            source, target = (_StridedRows(context, builder, signature.args[i], *values[i : i + 2]) for i in (1, 3))
            key, *_, repeats, length = values

            def transform(formula: Formula, arguments: int, repeat: Any, index: Any, mask: Any) -> None:
                addresses = source.addresses(repeat, index, arguments)
                results = formula([VectorNumber(simd, simd.load(each, mask)) for each in addresses])
                addresses = target.addresses(repeat, index, len(results))
                for result, each in zip(results, addresses, strict=True):
                    total = result + VectorNumber(simd, simd.load(each, mask)) if add else result
                    simd.store(total.value, each, mask)

            for own, (formula, arguments) in formulas.items():
                chosen = builder.icmp_signed("==", key, key.type(own))
                with builder.if_then(chosen), cgutils.for_range(builder, repeats) as repeat:
                    simd.for_each(length, partial(transform, formula, arguments, repeat.index))
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


class VectorBuilder:
    """Generates vector instructions for one type of numbers.

    Parameters
    ----------
    context, builder
        Numba's context and builder of the code being generated.
    kind
        Numba type of the numbers: float32 or float64.

    Attributes
    ----------
    lanes : int
        Numbers in a vector.
    bytes : int
        Bytes of a number.
    type
        LLVM type of a vector.
    builder
        The builder given.
    """

    def __init__(self, context: Any, builder: Any, kind: Any) -> None:
        self.builder, self._real = builder, context.get_data_type(kind)
        self.bytes = kind.bitwidth // 8
        self.lanes = BYTES // self.bytes
        self.type = ir.VectorType(self._real, self.lanes)

    def load(self, address: Any, mask: Any = None) -> Any:
        """Return the vector at an address, with zeros where the mask is zero."""
        place = self.builder.inttoptr(address, self.type.as_pointer())
        if mask is None:
            return self.builder.load(place, align=self.bytes)
        alignment = ir.IntType(32)
        kind = ir.FunctionType(self.type, [place.type, alignment, mask.type, self.type])
        arguments = [place, alignment(self.bytes), mask, self.type(None)]
        return self.builder.call(self._intrinsic("llvm.masked.load", kind), arguments)

    def store(self, value: Any, address: Any, mask: Any = None) -> None:
        """Store a vector at an address, except where the mask is zero."""
        place = self.builder.inttoptr(address, self.type.as_pointer())
        if mask is None:
            self.builder.store(value, place, align=self.bytes)
            return
        alignment = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [self.type, place.type, alignment, mask.type])
        self.builder.call(self._intrinsic("llvm.masked.store", kind), [value, place, alignment(self.bytes), mask])

    def mask(self, count: Any) -> Any:
        """Return a vector of bits of which the first `count` are one."""
        numbers = ir.VectorType(count.type, self.lanes)(list(range(self.lanes)))
        return self.builder.icmp_signed("<", numbers, _broadcast(self.builder, count, self.lanes))

    def for_each(self, length: Any, body: Callable[[Any, Any], None]) -> None:
        """Generate a loop over `length` numbers; `body` takes a vector's first index and its mask."""
        builder, word = self.builder, length.type
        whole = builder.and_(length, word(-self.lanes))
        with cgutils.for_range_slice(builder, word(0), whole, word(self.lanes), word) as (place, _):
            body(place, None)
        rest = builder.sub(length, whole)
        with builder.if_then(builder.icmp_signed(">", rest, word(0))):
            body(whole, self.mask(rest))

    def _intrinsic(self, name: str, kind: Any) -> Any:
        module, name = self.builder.module, f"{name}.v{self.lanes}f{8 * self.bytes}.p0"
        return module.globals.get(name) or ir.Function(module, kind, name)


class VectorNumber:
    """A vector whose arithmetic operators generate code. A product and a sum may be fused."""

    def __init__(self, simd: VectorBuilder, value: Any) -> None:
        self._simd, self.value = simd, value

    def __add__(self, other: VectorNumber) -> VectorNumber:
        return self._combined(self._simd.builder.fadd, other)

    def __sub__(self, other: VectorNumber) -> VectorNumber:
        return self._combined(self._simd.builder.fsub, other)

    def __mul__(self, other: VectorNumber) -> VectorNumber:
        return self._combined(self._simd.builder.fmul, other)

    def __rmul__(self, factor: float) -> VectorNumber:
        return self * VectorNumber(self._simd, self._simd.type([factor] * self._simd.lanes))

    def __neg__(self) -> VectorNumber:
        return -1.0 * self

    def _combined(self, operation: Callable[..., Any], other: VectorNumber) -> VectorNumber:
        return VectorNumber(self._simd, operation(self.value, other.value, flags=("contract",)))


def _broadcast(builder: Any, value: Any, width: int) -> Any:
    vector, index = ir.VectorType(value.type, width), ir.IntType(32)
    first = builder.insert_element(vector(ir.Undefined), value, index(0))
    return builder.shuffle_vector(first, vector(ir.Undefined), ir.VectorType(index, width)(None))
