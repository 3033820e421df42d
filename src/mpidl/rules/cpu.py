"""A rule's scalar form as a Numba loop over NumPy vectors."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from contextlib import suppress
from math import sqrt
from typing import TYPE_CHECKING, Any

import numba

from mpidl.rules.scalar import read

if TYPE_CHECKING:
    from mpidl.rules.rule import Rule


def loop(rule: type[Rule]) -> Callable[..., None]:
    """Return the compiled loop; it takes the parameters, the states, the gradient, then the coefficients.

    It compiles for a dtype when it first sees it, or loads the machine code from Numba's cache: beside the
    rule's file or, where the package is read-only, in the user's cache directory.
    """
    scope: dict[str, Any] = {"sqrt": sqrt, "__name__": rule.__module__}
    # Numba keeps its cache beside the file that a function is from, and drops it when that file changes.
    exec(compile(text(rule), inspect.getfile(rule), "exec"), scope)
    # Without NumPy's error model each division is checked, and the loop isn't vectorised. Without fastmath a
    # vector instruction rounds as the scalar one for the remainder does.
    dispatcher = numba.njit(scope[rule.name], error_model="numpy", nogil=True)
    with suppress(RuntimeError):  # Where no directory for the cache is writable, each start compiles.
        dispatcher.enable_caching()
    return dispatcher


def text(rule: type[Rule]) -> str:
    """Return the loop as Python text: the scalar form between reads and writes of the vectors' elements.

    The whole is one function, as Numba's cache doesn't notice a change in a function that a cached one calls.
    """
    scalar = read(rule)
    vectors = [scalar.element, *scalar.states, scalar.gradient]
    arguments = [*(f"{name}_vector" for name in vectors), *scalar.coefficients]
    written = ", ".join(f"{name}_vector[i]" for name in vectors[:-1])
    results = ", ".join(_typed(result) for result in scalar.results)
    lines = [
        f"def {rule.name}({', '.join(arguments)}):",
        f"    real = {scalar.element}_vector.dtype.type",
        *(f"    {name} = real({name})" for name in scalar.coefficients),
        f"    for i in range({scalar.element}_vector.size):",
        *(f"        {name} = {name}_vector[i]" for name in vectors),
        *(f"        {name} = {_typed(value)}" for name, value in scalar.assignments),
        f"        {written} = {results}",
    ]
    return "\n".join(lines) + "\n"


def _typed(node: ast.expr) -> str:
    """Return the expression's text, its constants cast to the vectors' dtype."""
    return ast.unparse(_TypedConstants().visit(node))


class _TypedConstants(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return ast.Call(ast.Name("real"), [node], [])
