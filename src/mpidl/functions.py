"""A user's functions, named in a configuration as ``module:function``, and the random numbers that they draw."""

from __future__ import annotations

import importlib
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from msgspec import Meta

from mpidl.errors import MpidlError, UsageError, quoted, raised
from mpidl.extras import FRAMEWORKS, missing

#: The value of a key that may name a function, ``"module:function"``: code that runs.
FunctionName = Annotated[str, Meta(extra={"runs code": True})]


def check_name(key: str, name: str) -> None:
    """Raise UsageError unless `name`, the value of `key`, is of the form ``module:function``."""
    if not re.fullmatch(r"[\w.]+:\w+", name):
        raise UsageError(f"{key}: expected module:function, found {quoted(name)}")


def find(key: str, name: str, takes: str) -> Callable[..., Any]:
    """Return a function by its name; its module may be in the current directory.

    Raise UsageError if there is no such module or function, or the module raises an error.

    Parameters
    ----------
    key : str
        The key of the name, such as ``"model.factory"``, for errors.
    name : str
        ``"module:function"``.
    takes : str
        The function's arguments, such as ``"(dataset, seed)"``, for errors.
    """
    module, _, function = name.partition(":")
    # It remains there, because the function and its result may import other modules later.
    directory = os.getcwd()
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ModuleNotFoundError as error:
        if error.name is None or f"{module}.".startswith(f"{error.name}."):
            where = f"found no module {module} in {directory} or among the installed ones"
            raise UsageError(f"{key}: {name}: {where}") from error
        raise _failure(f"{key}: {name}: module {module}", error) from error
    except (Exception, SystemExit) as error:
        raise _failure(f"{key}: {name}: module {module}", error) from error
    if not callable(found):
        what = "nothing" if found is None else f"{type(found).__name__}"
        raise UsageError(f"{key}: {name}: found {what} of that name, expected a function of {takes}")
    return found  # type: ignore[no-any-return]


def call(key: str, name: str, takes: str, *arguments: Any) -> Any:
    """Call the function found by `find`, and return its result.

    Raise UsageError if there is no such function, or it raises an error.
    """
    function = find(key, name, takes)
    try:
        return function(*arguments)
    except MpidlError:
        raise
    except (Exception, SystemExit) as error:
        raise _failure(f"{key}: {name}", error) from error


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """Restore the states of the generators of Python, NumPy and PyTorch at the end of this context."""
    import numpy as np

    states: list[tuple[Callable[[Any], None], Any]] = [
        (random.setstate, random.getstate()),
        (np.random.set_state, np.random.get_state()),  # noqa: NPY002 (the one that users' code draws from)
    ]
    if (torch := sys.modules.get("torch")) is not None:
        states.append((torch.set_rng_state, torch.get_rng_state()))
    try:
        yield
    finally:
        for restore, state in states:
            restore(state)


def seed_generators(seed: int) -> None:
    """Seed the generators of Python, NumPy and, if it is in use, PyTorch, from which users' code draws."""
    import numpy as np

    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)


def _failure(where: str, error: BaseException) -> UsageError:
    """Return the error for one raised by the user's code."""
    if isinstance(error, MpidlError):
        return UsageError(f"{where}: {error}")
    if isinstance(error, ModuleNotFoundError) and error.name in FRAMEWORKS:
        return UsageError(f"{where}: {missing(error.name, error.name)}")
    return UsageError(f"{where} {raised(error)}")
