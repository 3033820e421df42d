"""A rule's scalar form, and its parts, from which the compiled forms are derived."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import ClassVar, NamedTuple


class ScalarForm:
    """The class variables of an update rule from which its loops are compiled; see `Rule`."""

    name: ClassVar[str]
    states: ClassVar[tuple[str, ...]] = ()
    scalar: ClassVar[Callable[..., tuple[float, ...]]]


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


def read(rule: type[ScalarForm], decaying: bool = False) -> Parts:
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
