"""How a script on several ranks ends with an error that all of them have met and that it doesn't catch."""

from __future__ import annotations

import sys
from types import TracebackType

from mpidl.errors import MpidlError
from mpidl.launch import environment
from mpidl.launch.output import say

__all__ = ["tell_once"]


def tell_once() -> None:
    """Let the first of several ranks say an uncaught `MpidlError` in a line, and all end with its exit code.

    A process alone, and any other error, ends with a traceback as ever.
    """
    if environment.world().size > 1 and sys.excepthook is not _tell:
        sys.excepthook = _tell


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, MpidlError):
        sys.__excepthook__(kind, error, trace)
        return
    if environment.world().rank == 0:
        say(str(error))
    raise SystemExit(error.exit_code)
