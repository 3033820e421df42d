"""Optional packages, installed by ``pip install 'mpidl[EXTRA]'``."""

from __future__ import annotations

import importlib
from typing import Any

from mpidl.errors import UsageError

#: Packages imported by users' code, and installed by extras of the same name.
FRAMEWORKS = ("torch", "jax")


def require(module: str, extra: str) -> Any:
    """Return a module of a package that belongs to one of the extras.

    Raise UsageError if it isn't installed; the error says what to install.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise UsageError(missing(package, extra)) from None


def missing(package: str, extra: str) -> str:
    """Return the error for a package that isn't installed."""
    return f"{package} is not installed, expected `pip install 'mpidl[{extra}]'`"
