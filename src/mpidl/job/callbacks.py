"""Functions of a user's own that take each record of a run, and the model's values if they ask for these."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from msgspec import Struct

from mpidl.errors import MpidlError, UsageError, quoted, raised

#: What a callback takes: a record, or a record and the values of the model's tensors by name.
Callback = Callable[..., object]


class Callbacks(Struct, frozen=True):
    """Calls functions with a record or, if they have two required arguments, with a record and the model's values.

    Raise UsageError for what is no such function.
    """

    functions: Sequence[Callback] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.functions, tuple | list):
            raise UsageError(f"callbacks: expected a list of functions, found {quoted(self.functions)}")
        for number, function in enumerate(self.functions):
            if not callable(function) or not _arguments(function):
                expected = "a function of a record, or of a record and the model's values"
                raise UsageError(f"callbacks[{number}]: expected {expected}, found {quoted(function)}")

    @property
    def take_values(self) -> bool:
        """Whether one of them takes the model's values."""
        return any(_arguments(function) == 2 for function in self.functions)

    def __call__(self, record: Mapping[str, Any], values: Callable[[], Mapping[str, np.ndarray]]) -> None:
        """Call each function with a copy of a record; MpidlError if one raises an error."""
        read = cache(values)
        for function in self.functions:
            given: list[Any] = [dict(record)]
            if _arguments(function) == 2:
                given.append(read())
            try:
                function(*given)
            except Exception as error:
                name = getattr(function, "__name__", type(function).__name__)
                raise MpidlError(f"callbacks: {name} {raised(error)}") from error


def _arguments(function: Callback) -> int:
    """Return the number of arguments that a function takes, 1 if it can; 0 if it takes neither 1 nor 2."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions of C
        return 1
    for number in (1, 2):
        try:
            signature.bind(*range(number))
        except TypeError:
            continue
        return number
    return 0
