"""Reading memory ahead, in compiled loops that look at many places which don't follow each other."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

#: Without types of its own.
tools: Any = cgutils


def _prefetch(context: Any, array: Any, place: Any) -> Any:
    """Have an element of a contiguous array, by its place, read into the cache; the loop doesn't wait for it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, place = arguments
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        data = tools.create_struct_proxy(signature.args[0])(context, builder, array).data
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = tools.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        # For reading, to stay in all caches, as data.
        modes = [ir.Constant(number, mode) for mode in (0, 3, 1)]
        builder.call(function, [builder.bitcast(builder.gep(data, [place]), byte), *modes])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


prefetch: Any = intrinsic(_prefetch)
