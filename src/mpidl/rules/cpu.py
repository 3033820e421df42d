"""Numba loops over NumPy vectors, compiled from a rule's scalar form."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from math import sqrt
from typing import Any

from mpidl.jit import jit
from mpidl.rules.scalar import ScalarForm, read


def loop(rule: type[ScalarForm], sparse: bool = False, decaying: bool = False) -> Callable[..., None]:
    """Return the compiled loop; its arguments are the parameters, the states, the gradient and the coefficients.

    If `sparse`, the loop skips elements whose gradient is 0. If `decaying`, weight decay is the last argument.
    """
    scope: dict[str, Any] = {"sqrt": sqrt, "__name__": rule.__module__}
    # Numba caches a function beside the file that it is defined in, and drops the cache when that file changes.
    exec(compile(source(rule, sparse, decaying), inspect.getfile(rule), "exec"), scope)
    return jit(scope[_name(rule, sparse, decaying)])


def _name(rule: type[ScalarForm], sparse: bool, decaying: bool) -> str:
    return f"{rule.name}{'_sparse' * sparse}{'_decaying' * decaying}"


def source(rule: type[ScalarForm], sparse: bool = False, decaying: bool = False) -> str:
    """Return the loop's source in Python: the scalar form between reads and writes of the vectors' elements.

    It is a single function because Numba's cache misses changes in the functions that a cached one calls.
    """
    form = read(rule, decaying)
    vectors = [form.element, *form.states, form.gradient]
    arguments = [*(f"{name}_vector" for name in vectors), *form.coefficients]
    written = ", ".join(f"{name}_vector[i]" for name in vectors[:-1])
    results = ", ".join(_typed(result) for result in form.results)
    statements = [
        f"def {_name(rule, sparse, decaying)}({', '.join(arguments)}):",
        f"    real = {form.element}_vector.dtype.type",
        *(f"    {name} = real({name})" for name in form.coefficients),
        f"    for i in range({form.element}_vector.size):",
        *([f"        if {form.gradient}_vector[i] == 0:", "            continue"] if sparse else []),
        *(f"        {name} = {name}_vector[i]" for name in vectors),
        *(f"        {name} = {_typed(value)}" for name, value in form.assignments),
        f"        {written} = {results}",
    ]
    return "\n".join(statements) + "\n"


def _typed(node: ast.expr) -> str:
    """Return an expression's source, with constants cast to the vectors' dtype."""
    return ast.unparse(_TypedConstants().visit(node))


class _TypedConstants(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return ast.Call(ast.Name("real"), [node], [])
