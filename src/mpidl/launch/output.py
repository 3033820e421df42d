"""Lines on stderr beside a job's output, and writes to output that has been closed."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mpidl.errors import printable

STDOUT, STDERR = 1, 2

#: Errors of a write to a pipe without a reader, and to a closed terminal.
GONE = (errno.EPIPE, errno.EIO)


def terminate() -> None:
    """Ask this process to stop, by SIGTERM."""
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def tolerate_closed(descriptor: int, then: Callable[[], object] = terminate) -> Iterator[None]:
    """Call `then` if a write to `descriptor` in this context finds it closed; later output is discarded."""
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
    """Write a line on stderr that begins with ``mpidl:``; call `then` if stderr has been closed."""
    with tolerate_closed(STDERR, then):
        print(f"mpidl: {printable(text)}", file=sys.stderr, flush=True)


def interject(text: str) -> None:
    """Write a line between those of ranks; on a terminal, it starts on a line of its own."""
    with tolerate_closed(STDERR, lambda: None):
        os.write(STDERR, f"{os.linesep if os.isatty(STDERR) else ''}mpidl: {text}\n".encode())
