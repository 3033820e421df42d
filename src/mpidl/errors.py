"""Errors with one line of text for people."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")

#: Length of a name or value in an error.
SHOWN = 60


class MpidlError(Exception):
    """A fatal error of a run, with one line of text for people (exit code 1).

    `everywhere` says whether all ranks are known to raise it.
    """

    exit_code = 1
    everywhere = False

    def __init__(self, text: str) -> None:
        super().__init__(printable(text))
        if sys.excepthook is sys.__excepthook__:  # not that of a debugger, a notebook or several ranks
            sys.excepthook = _report

    @property
    def alone(self) -> bool:
        """Whether its line says everything: no exception of another kind led to it, and no traceback is asked for."""
        if os.environ.get("MPIDL_DEBUG"):
            return False
        other = self.__cause__ or (None if self.__suppress_context__ else self.__context__)
        return other is None or (isinstance(other, MpidlError) and other.alone)

    def drop_advice(self) -> None:
        """Leave advice on tracebacks out of this error, and of those that led to it: they are shown."""
        error: BaseException | None = self
        while error is not None:
            if isinstance(error, MpidlError):
                error.args = (re.sub(r" \(MPIDL_DEBUG=1 shows [a-z ]+\)", "", str(error)),)
            error = error.__cause__ or error.__context__

    @property
    def _render_traceback_(self) -> Callable[[], list[str]]:
        """What IPython and notebooks call, if it is there, for the lines that they show."""
        if not self.alone:
            self.drop_advice()
            raise AttributeError
        return lambda: [f"mpidl: {self}"]


class UsageError(MpidlError):
    """An invalid request by the user: the key or file, what was found, and what would be right (exit code 2)."""

    exit_code = 2


class Unfinished(MpidlError):
    """The end of a run that a signal has stopped, but some ranks go on; what is saved can be resumed (exit code 75)."""

    exit_code = 75


class DivergenceError(MpidlError):
    """A number that must be finite is not, on a rank if one is known: the same run would come to it again."""

    def __init__(self, text: str, rank: int | None = None) -> None:
        super().__init__(text)
        self.rank = rank


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """In place of `sys.excepthook`, report a `MpidlError` in one line, and anything else as before."""
    if not isinstance(error, MpidlError) or not error.alone:
        if isinstance(error, MpidlError):
            error.drop_advice()
        sys.__excepthook__(kind, error, trace)
        return
    print(f"mpidl: {error}", file=sys.stderr)
    if not (hasattr(sys, "ps1") or sys.flags.inspect):
        raise SystemExit(error.exit_code)


def as_line(error: Exception) -> MpidlError:
    """Return an error as a `MpidlError`."""
    if isinstance(error, MpidlError):
        return error
    line: MpidlError
    if isinstance(error, MemoryError):
        line = UsageError(f"out of memory: {error or 'the configuration needs more than there is'}")
    elif isinstance(error, PermissionError) and error.filename is not None:
        line = UsageError(f"{error.filename}: {error.strerror}")
    else:
        line = MpidlError(f"{named(error)}{_advice('where')}")
    line.__cause__ = error
    return line


def outcome(action: Callable[[], T]) -> T | MpidlError:
    """Return what an action returns, or the error that it raises, for ranks that gather either."""
    try:
        return action()
    except Exception as error:
        return as_line(error)


#: Advice on numbers that are NaN or infinite.
NOT_FINITE = "try a lower rate, or model.clip; with run.terminate_on_nan = false the run continues"


#: What other packages call keys of this one.
ELSEWHERE = {"lr": "rate", "learning_rate": "rate", "eps": "epsilon", "betas": "beta1", "batch_size": "batch"}


def nearest(word: str, known: list[str]) -> str:
    """Return ``", did you mean 'x'?"`` for the known word closest to `word`, or a list of the known words."""
    import difflib

    folded = {each.casefold(): each for each in known}
    close = difflib.get_close_matches(ELSEWHERE.get(word, word).casefold(), list(folded), n=1)
    return f", did you mean {folded[close[0]]!r}?" if close else f"; known: {', '.join(sorted(known))}"


def printable(text: str) -> str:
    """Return `text` as one line with escaped control characters."""
    return escaped(" ".join(part.strip() for part in text.splitlines()))


def escaped(line: str) -> str:
    """Return a line for a terminal with escaped control characters, so that names can't inject escape sequences."""
    if line.isprintable():
        return line
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in line)


def quoted(value: object) -> str:
    """Return a user's value as text for an error, shortened."""
    return shown(repr(value))


def kind_of(value: object) -> str:
    """Return the name of a value's type with its article: ``"a str"``, ``"an int"``; or ``"None"``."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"


def named(error: BaseException) -> str:
    """Return an error as text: its type and what it says, or the call of ``sys.exit`` that has raised it."""
    if isinstance(error, SystemExit):
        return f"{_exit(error)} was called"
    text = str(error).strip()
    return f"{type(error).__name__}{text and f': {text}'}"


def raised(error: BaseException) -> str:
    """Return the second half of a line about something that has raised an error: "raised ValueError: ..."."""
    done = f"called {_exit(error)}" if isinstance(error, SystemExit) else f"raised {named(error)}".partition("\n")[0]
    return f"{done}{_advice('its traceback')}"


def _exit(error: SystemExit) -> str:
    return f"sys.exit({'' if error.code is None else repr(error.code)})"


def _advice(what: str) -> str:
    return "" if os.environ.get("MPIDL_DEBUG") else f" (MPIDL_DEBUG=1 shows {what})"


def shown(text: str, most: int = SHOWN) -> str:
    """Return a name or value for an error, shortened to `most` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
