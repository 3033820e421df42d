"""A rule's scalar form, and the loops and kernels compiled from it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from math import sqrt
from typing import Any, NamedTuple

from mpidl.jit import Compiled, jit


class Parts(NamedTuple):
    """The parts of a scalar form's syntax tree: names of the arguments, assignments, and returned expressions.

    The results are the new element, then the new states.
    """

    element: str
    states: list[str]
    gradient: str
    coefficients: list[str]
    assignments: list[tuple[str, ast.expr]]
    results: list[ast.expr]


def read(rule: type[Any], decaying: bool = False) -> Parts:
    """Return the parts of a rule's scalar form.

    Parameters
    ----------
    decaying : bool
        Replace the gradient by ``g + weight_decay * w``; weight decay then is the last coefficient.

    Raises
    ------
    TypeError
        If it isn't a sequence of assignments and one return of a tuple: the new element and its states.
    """
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(rule.scalar))).body
    assert isinstance(function, ast.FunctionDef)
    arguments = [argument.arg for argument in function.args.args]
    changed = 1 + len(rule.states)
    assignments = []
    for statement in function.body:
        match statement:
            case ast.Assign([ast.Name(target)], value) if target not in arguments[changed:]:
                assignments.append((target, value))
            case ast.Return(ast.Tuple(results)) if len(results) == changed and statement is function.body[-1]:
                parts = Parts(
                    element=arguments[0],
                    states=arguments[1:changed],
                    gradient=arguments[changed],
                    coefficients=arguments[changed + 1 :],
                    assignments=assignments,
                    results=results,
                )
                return _decaying(parts) if decaying else parts
            case _:
                break
    raise TypeError(
        f"{rule.name}: the scalar form must be assignments to the element, states and new names, "
        f"then return a tuple of {changed}; found {ast.unparse(statement)!r}"
    )


def _decaying(parts: Parts) -> Parts:
    """Return the parts of the form with weight decay in the gradient."""
    name, decay = f"decaying_{parts.gradient}", "weight_decay"
    rename = _Renaming(parts.gradient, name)
    sum_of_both = ast.parse(f"{parts.gradient} + {decay} * {parts.element}", mode="eval").body
    return parts._replace(
        coefficients=[*parts.coefficients, decay],
        assignments=[(name, sum_of_both), *((target, rename.visit(value)) for target, value in parts.assignments)],
        results=[rename.visit(result) for result in parts.results],
    )


class _Renaming(ast.NodeTransformer):
    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self._new, node.ctx) if node.id == self._old else node


def loop(rule: type[Any], sparse: bool = False, decaying: bool = False) -> Compiled:
    """Return the compiled loop; its arguments are the parameters, the states, the gradient and the coefficients.

    If `sparse`, the loop skips elements whose gradient is 0. If `decaying`, weight decay is the last argument.
    """
    return compiled_source(rule, _name(rule, sparse, decaying), loop_source(rule, sparse, decaying), {"sqrt": sqrt})


def compiled_source(rule: type[Any], name: str, source: str, scope: dict[str, Any]) -> Compiled:
    """Return the compiled function of a name in a source made of a rule's scalar form, with the names in `scope`."""
    scope["__name__"] = rule.__module__
    # Numba caches a function beside the file that it is defined in, and drops the cache when that file changes.
    exec(compile(source, inspect.getfile(rule), "exec"), scope)
    return jit(scope[name])


def _name(rule: type[Any], sparse: bool, decaying: bool) -> str:
    return f"{rule.name}{'_sparse' * sparse}{'_decaying' * decaying}"


def loop_source(rule: type[Any], sparse: bool = False, decaying: bool = False) -> str:
    """Return the loop's source in Python: the scalar form between reads and writes of the vectors' elements.

    It is a single function because Numba's cache misses changes in the functions that a cached one calls.
    """
    form = read(rule, decaying)
    vectors = [form.element, *form.states, form.gradient]
    arguments = [*(f"{name}_vector" for name in vectors), *form.coefficients]
    written = ", ".join(f"{name}_vector[i]" for name in vectors[:-1])
    results = ", ".join(typed(result) for result in form.results)
    statements = [
        f"def {_name(rule, sparse, decaying)}({', '.join(arguments)}):",
        f"    real = {form.element}_vector.dtype.type",
        *(f"    {name} = real({name})" for name in form.coefficients),
        f"    for i in range({form.element}_vector.size):",
        *([f"        if {form.gradient}_vector[i] == 0:", "            continue"] if sparse else []),
        *(f"        {name} = {name}_vector[i]" for name in vectors),
        *(f"        {name} = {typed(value)}" for name, value in form.assignments),
        f"        {written} = {results}",
    ]
    return "\n".join(statements) + "\n"


def typed(node: ast.expr) -> str:
    """Return an expression's source, with constants cast to the vectors' dtype."""
    return ast.unparse(_TypedConstants().visit(node))


class _TypedConstants(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return ast.Call(ast.Name("real"), [node], [])


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


def kernel(rule: type[Any], decaying: bool = False) -> Callable[..., None]:
    """Return the compiled function; its arguments are the parameters, the states, the gradient and the coefficients.

    If `decaying`, weight decay is the last argument. Contraction to fused multiply-add is off, so that the kernel
    rounds as the CPU does; but CuPy replaces float32 results below 1.2e-38 with zero.
    """
    import cupy

    name = f"mpidl_{rule.name}{'_decaying' * decaying}"
    elementwise = cupy.ElementwiseKernel(*kernel_source(rule, decaying), name=name, options=("--fmad=false",))
    changed = 1 + len(rule.states)

    def apply(*arguments: Any) -> None:
        elementwise(*arguments[changed:], *arguments[:changed])

    return apply


def kernel_source(rule: type[Any], decaying: bool = False) -> tuple[str, str, str]:
    """Return a `cupy.ElementwiseKernel`'s inputs, the vectors it changes in place, and its body; `T` is their type."""
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
    inputs, outputs = (
        ", ".join(f"T {name}" for name in names) for names in ((form.gradient, *form.coefficients), changed)
    )
    return inputs, outputs, "\n".join(body)


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
