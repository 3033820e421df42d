"""Kernels over CuPy vectors, compiled from a rule's scalar form."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, NamedTuple

from mpidl.rules.scalar import ScalarForm, read

OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


class KernelSource(NamedTuple):
    """Source of a `cupy.ElementwiseKernel`: its inputs, the vectors it changes in place, and its body."""

    inputs: str
    outputs: str
    body: str


def kernel(rule: type[ScalarForm], decaying: bool = False) -> Callable[..., None]:
    """Return the compiled function; its arguments are the parameters, the states, the gradient and the coefficients.

    If `decaying`, weight decay is the last argument. Contraction to fused multiply-add is off, so that the kernel
    rounds as the CPU does; but CuPy replaces float32 results below 1.2e-38 with zero.
    """
    import cupy

    name = f"mpidl_{rule.name}{'_decaying' * decaying}"
    elementwise = cupy.ElementwiseKernel(*source(rule, decaying), name=name, options=("--fmad=false",))
    changed = 1 + len(rule.states)

    def apply(*arguments: Any) -> None:
        elementwise(*arguments[changed:], *arguments[:changed])

    return apply


def source(rule: type[ScalarForm], decaying: bool = False) -> KernelSource:
    """Return the kernel's source, in which `T` is the vectors' type."""
    form = read(rule, decaying)
    changed = [form.element, *form.states]
    known = set(changed)
    body = []
    for name, value in form.assignments:
        body.append(f"{'' if name in known else 'T '}{name} = {_expression(value)};")
        known.add(name)
    # All results are computed before any is stored: a result may read what another changes.
    body += [f"T new_{name} = {_expression(result)};" for name, result in zip(changed, form.results, strict=True)]
    body += [f"{name} = new_{name};" for name in changed]
    return KernelSource(
        inputs=", ".join(f"T {name}" for name in (form.gradient, *form.coefficients)),
        outputs=", ".join(f"T {name}" for name in changed),
        body="\n".join(body),
    )


def _expression(node: ast.expr) -> str:
    """Translate a Python expression to CUDA C++, with parentheses that keep Python's order of evaluation."""
    match node:
        case ast.Name(name):
            return name
        case ast.Constant(value):
            return f"T({value!r})"
        case ast.UnaryOp(ast.USub(), operand):
            return f"(-{_expression(operand)})"
        case ast.BinOp(left, operator, right) if type(operator) in OPERATORS:
            return f"({_expression(left)} {OPERATORS[type(operator)]} {_expression(right)})"
        case ast.Compare(left, [operator], [right]) if type(operator) in OPERATORS:
            return f"({_expression(left)} {OPERATORS[type(operator)]} {_expression(right)})"
        case ast.IfExp(test, body, orelse):
            return f"({_expression(test)} ? {_expression(body)} : {_expression(orelse)})"
        case ast.Call(ast.Name("sqrt"), [argument]):
            return f"sqrt({_expression(argument)})"
    raise TypeError(f"{ast.unparse(node)!r} has no CUDA translation")
