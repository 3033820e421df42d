"""A rule's scalar form as a Numba loop over NumPy vectors."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from math import sqrt
from typing import Any

from mpidl.jit import jit
from mpidl.rules.scalar import ScalarForm, read


def loop(rule: type[ScalarForm], sparse: bool = False) -> Callable[..., None]:
    """Return the compiled loop; it takes the parameters, the states, the gradient, then the coefficients.

    The `sparse` one leaves elements alone whose gradient is 0.
    """
    scope: dict[str, Any] = {"sqrt": sqrt, "__name__": rule.__module__}
    # Numba keeps its cache beside the file that a function is from, and drops it when that file changes.
    exec(compile(text(rule, sparse), inspect.getfile(rule), "exec"), scope)
    return jit(scope[_name(rule, sparse)])


def _name(rule: type[ScalarForm], sparse: bool) -> str:
    return f"{rule.name}_sparse" if sparse else rule.name


def text(rule: type[ScalarForm], sparse: bool = False) -> str:
    """Return the loop as Python text: the scalar form between reads and writes of the vectors' elements.

    The whole is one function, as Numba's cache doesn't notice a change in a function that a cached one calls.
    """
    form = read(rule)
    vectors = [form.element, *form.states, form.gradient]
    arguments = [*(f"{name}_vector" for name in vectors), *form.coefficients]
    written = ", ".join(f"{name}_vector[i]" for name in vectors[:-1])
    results = ", ".join(_typed(result) for result in form.results)
    lines = [
        f"def {_name(rule, sparse)}({', '.join(arguments)}):",
        f"    real = {form.element}_vector.dtype.type",
        *(f"    {name} = real({name})" for name in form.coefficients),
        f"    for i in range({form.element}_vector.size):",
        *([f"        if {form.gradient}_vector[i] == 0:", "            continue"] if sparse else []),
        *(f"        {name} = {name}_vector[i]" for name in vectors),
        *(f"        {name} = {_typed(value)}" for name, value in form.assignments),
        f"        {written} = {results}",
    ]
    return "\n".join(lines) + "\n"


def _typed(node: ast.expr) -> str:
    """Return the expression's text, its constants cast to the vectors' dtype."""
    return ast.unparse(_TypedConstants().visit(node))


class _TypedConstants(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return ast.Call(ast.Name("real"), [node], [])
