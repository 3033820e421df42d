"""Packages that only some uses need, which ``pip install 'mpidl[EXTRA]'`` brings."""

from __future__ import annotations

import importlib
from typing import Any

from mpidl.errors import UsageError

#: Packages that a user's own code imports, and that extras of the same name bring.
FRAMEWORKS = ("torch", "jax")


def require(module: str, extra: str) -> Any:
    """Return a module of a package that one of the extras brings.

    Raises
    ------
    UsageError
        It isn't installed; the line says what to install.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise UsageError(missing(package, extra)) from None


def missing(package: str, extra: str) -> str:
    """Return the line for a package that isn't installed."""
    return f"{package} is not installed, expected `pip install 'mpidl[{extra}]'`"
