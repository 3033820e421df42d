"""What becomes of output whose reader has gone away: ``mpidl train ... 2>&1 | head``, or a terminal that was closed."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["STDERR", "STDOUT", "readerless"]

STDOUT, STDERR = 1, 2

#: What a write to a pipe without a reader, and to a terminal that was closed, ends with.
GONE = (errno.EPIPE, errno.EIO)


def _terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def readerless(descriptor: int, then: Callable[[], object] = _terminate) -> Iterator[None]:
    """Do something where what is written in this context finds no reader; what is written from then on goes nowhere.

    Parameters
    ----------
    descriptor : int
        `STDOUT` or `STDERR`.
    then : callable
        What to do; to ask this process to stop, by SIGTERM, if not given.
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
