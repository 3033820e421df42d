"""This process's output: lines without control characters; write errors are ignored."""

from __future__ import annotations

import codecs
import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from json import dumps

from mpidl.errors import MpidlError, escaped, printable

STDOUT, STDERR = 1, 2

#: Errors of a write to a pipe without a reader, and to a closed terminal.
GONE = (errno.EPIPE, errno.EIO)
#: Seconds that a process waits for its last words to be written: their reader may be blocked.
LAST_WORDS = 5.0


#: The name by which codecs know `_escaped`.
ESCAPING = "mpidl.escaping"


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Return characters that an encoding lacks, escaped as in JSON, and the position after them."""
    assert isinstance(error, UnicodeEncodeError)
    return dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error(ESCAPING, _escaped)


def occupy() -> None:
    """Open the standard streams that are closed to nothing: otherwise the run's files would get their numbers."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(number, True)
    os.close(number)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)


def terminate() -> None:
    """Ask this process to stop, by SIGTERM."""
    os.kill(os.getpid(), signal.SIGTERM)


def ignore() -> None:
    """Do nothing."""


@contextmanager
def tolerate_loss(descriptor: int, then: Callable[[], object] = terminate) -> Iterator[None]:
    """Drop what can't be written to `descriptor` in this context, such as lines of a log on a full disk.

    If its reader has gone, all later output is dropped, too, and `then` is called.
    """
    try:
        yield
    except OSError as error:
        _drop(descriptor, error)
        if error.errno in GONE:
            then()


def _drop(descriptor: int, error: OSError) -> None:
    """Drop what a stream has buffered, whose write would fail again, and later output if the reader has gone."""
    with suppress(OSError):  # the descriptor is closed
        own, nowhere = os.dup(descriptor), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
        stream = sys.stdout if descriptor == STDOUT else sys.stderr
        try:
            if stream is not None:
                stream.flush()
        finally:
            if error.errno not in GONE:
                os.dup2(own, descriptor)
            os.close(own)


def show(line: str, then: Callable[[], object] = ignore) -> None:
    """Write a line on stderr; call `then` if stderr has been closed."""
    with tolerate_loss(STDERR, then):
        if sys.stderr is not None:  # print would take stdout
            print(escaped(line), file=sys.stderr, flush=True)


def say(text: str, then: Callable[[], object] = ignore) -> None:
    """Write one line on stderr that begins with ``mpidl:``; call `then` if stderr has been closed."""
    show(f"mpidl: {printable(text)}", then)


def interject(text: str) -> None:
    """Write a line between those of ranks; on a terminal, it starts on a line of its own."""
    send(f"{os.linesep if os.isatty(STDERR) else ''}mpidl: {printable(text)}\n".encode())


def send(text: bytes, then: Callable[[], object] = ignore) -> None:
    """Write text of others on stderr as it is; call `then` if stderr has been closed."""
    with tolerate_loss(STDERR, then):
        os.write(STDERR, text)


def attempt(*actions: Callable[[], object]) -> None:
    """Carry out actions before the process ends, ignoring what they raise, for at most `LAST_WORDS`."""

    def carry_out() -> None:
        for action in actions:
            with suppress(BaseException):
                action()

    with suppress(RuntimeError):  # There is no room for another thread.
        thread = threading.Thread(target=carry_out, daemon=True)
        thread.start()
        thread.join(LAST_WORDS)


def show_traceback(error: BaseException) -> None:
    """Write an error's traceback on stderr."""
    import traceback

    for line in "".join(traceback.format_exception(error)).splitlines():
        show(line)


def deliver(text: str, end: str = "\n", needed: bool = False, verbatim: bool = False) -> None:
    """Write lines on stdout, with escaped control characters unless `verbatim`.

    Letters that the encoding of stdout lacks are escaped as in JSON; a `verbatim` text that has such letters is UTF-8.
    Raise MpidlError if they can't be written. Unless the text is `needed`, stdout may be closed, and its reader may
    leave.
    """
    lines = text if verbatim else "\n".join(map(escaped, text.split("\n")))
    why = None
    if sys.stdout is None:
        why = "closed" if needed else None
    else:
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        known = lines.encode(encoding, ESCAPING).decode(encoding)
        try:
            if verbatim and known != lines:
                sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")  # type: ignore[union-attr]
            print(lines if verbatim else known, end=end, flush=True)
        except OSError as error:
            _drop(STDOUT, error)
            why = error.strerror if needed or error.errno not in GONE else None
    if why is not None:
        raise MpidlError(f"stdout: {why}, the output is lost")


def finish() -> None:
    """Write what Python's streams hold back; what can't be written doesn't change the exit code."""
    for descriptor, stream in ((STDOUT, sys.stdout), (STDERR, sys.stderr)):
        with tolerate_loss(descriptor, ignore):
            if stream is not None:
                stream.flush()
