"""The loop that carries out what an algorithm's generator asks for."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeVar

Wait = TypeVar("Wait")
Result = TypeVar("Result")


def drive(
    requests: Generator[Any, Any, Result], actions: Mapping[type, Callable[[Any], Generator[Wait, Any, Any]]]
) -> Generator[Wait, Any, Result]:
    """Carry out each request of a generator by the action for its type, and send the answer back.

    Whatever an action yields passes through: an engine that is itself a generator writes ``yield from drive(...)``, and
    its actions yield what they wait for.

    Parameters
    ----------
    requests : generator
        Yields requests and receives their answers, as `Algorithm.replica` and `Algorithm.coordinator` do.
    actions : mapping of type to callable
        The action for each type of request: takes the request and returns a generator, which returns the answer.

    Returns
    -------
    object
        What `requests` returns at its end.

    Raises
    ------
    KeyError
        The generator makes a request of a type that has no action.
    """
    answer: Any = None
    while True:
        try:
            request = requests.send(answer)
        except StopIteration as end:
            result: Result = end.value
            return result
        answer = yield from actions[type(request)](request)
