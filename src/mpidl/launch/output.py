"""What becomes of output whose reader has gone away: ``mpidl train ... 2>&1 | head``, or a terminal that was closed."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mpidl.errors import printable

__all__ = ["STDERR", "STDOUT", "interject", "readerless", "say", "terminate"]

STDOUT, STDERR = 1, 2

#: What a write to a pipe without a reader, and to a terminal that was closed, ends with.
GONE = (errno.EPIPE, errno.EIO)


def terminate() -> None:
    """Ask this process to stop, by SIGTERM."""
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def readerless(descriptor: int, then: Callable[[], object] = terminate) -> Iterator[None]:
    """Do something where what is written in this context finds no reader; what is written from then on goes nowhere.

    Parameters
    ----------
    descriptor : int
        `STDOUT` or `STDERR`.
    then : callable
        What to do; `terminate` if not given.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in GONE:
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
        then()


def say(text: str, then: Callable[[], object] = lambda: None) -> None:
    """Write a line on stderr that begins with ``mpidl:``; if nobody reads it, do something, by default nothing."""
    with readerless(STDERR, then):
        print(f"mpidl: {printable(text)}", file=sys.stderr, flush=True)


def interject(text: str) -> None:
    """Say a line among what ranks write; on a terminal it doesn't go on from what stands there."""
    with readerless(STDERR, lambda: None):
        os.write(STDERR, f"{os.linesep if os.isatty(STDERR) else ''}mpidl: {text}\n".encode())
