"""Reading a rule's scalar form, from which its compiled forms are derived."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mpidl.rules.rule import Rule


class Scalar(NamedTuple):
    """A scalar form's syntax tree in parts.

    Attributes
    ----------
    element, states, gradient, coefficients
        Names of its arguments.
    assignments
        Name and expression of each assignment before its return.
    results
        The returned expressions: the new element, then the new states.
    """

    element: str
    states: list[str]
    gradient: str
    coefficients: list[str]
    assignments: list[tuple[str, ast.expr]]
    results: list[ast.expr]


def read(rule: type[Rule]) -> Scalar:
    """Return the parts of a rule's scalar form.

    Raises
    ------
    TypeError
        If it isn't assignments, then one return of a tuple: the new element and its states.
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
                return Scalar(
                    element=arguments[0],
                    states=arguments[1:changed],
                    gradient=arguments[changed],
                    coefficients=arguments[changed + 1 :],
                    assignments=assignments,
                    results=results,
                )
            case _:
                break
    raise TypeError(
        f"{rule.name}: the scalar form must be assignments to the element, states and new names, "
        f"then return a tuple of {changed}; found {ast.unparse(statement)!r}"
    )
