"""The output of a job: its stdout, copied, and its stderr, with the launcher's messages on ranks that died."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import IO, NamedTuple

from mpidl.launch.output import GONE, STDOUT

#: Open MPI writes a message between two of these lines.
RULE = b"-" * 74

#: Bytes of the longest message whose end is waited for.
LONGEST = 4096

#: Exit codes of mpidl itself, which has printed the reason where there is one.
CODE = rb"(?:1|2|75)\b"

#: Messages that only repeat such an exit code, or report a signal that mpidl sent.
REDUNDANT = (
    re.compile(rb"processes exited with non-zero status.*Exit code:\s+" + CODE, re.DOTALL),
    re.compile(rb"returned\s+a non-zero exit code"),
    re.compile(rb"MPI_ABORT was invoked on rank.*rrorcode:? " + CODE, re.DOTALL),
    re.compile(rb"exited on\s+signal 10 \(User defined signal 1\)"),  # before its handler was set
    re.compile(rb'has exited due to process rank \d+.*calling\s+"abort"', re.DOTALL),
)

#: Messages about ranks that have ended without a farewell to MPI.
ENDS = (re.compile(rb"has exited due to process rank \d+.*exiting\s+improperly", re.DOTALL),)

#: Beginnings of lines that only repeat such a code (MPICH, Intel MPI), or that report a file that the launcher closed
#: too early (Open MPI); and the lines.
LINES = (
    (b"Abort(", re.compile(rb"Abort\(" + CODE + rb"\) on node \d+ .*: application called MPI_Abort\(.*\n")),
    (b"[warn] Epoll ", re.compile(rb"\[warn\] Epoll .*Bad file descriptor\n")),
)
STARTS = tuple(start for start, _ in LINES)
#: Open MPI's line on an answer for a rank that has ended. A user's own progress bar may begin like it, so its beginning
#: is not held back.
UNREACHED = re.compile(rb"\[[^\]\n]+:\d+\] PMIX ERROR: PMIX_ERR_UNREACH in file \S+/pmix_server\.c at line \d+\n")


def quieten(chunks: Iterable[bytes], survived: Callable[[], bool] = lambda: False) -> Iterator[bytes]:
    """Yield a job's stderr as it arrives, without the launcher's messages about exit codes of mpidl itself.

    When the job has `survived()`, that is, its work is done, messages about the ends of ranks are left out, too.

    A message of mpidl or of the launcher that follows an unfinished line, such as a user's own progress bar, starts on
    a line of its own.
    """
    pending, at_start = b"", True
    for chunk in (chunk.replace(b"\0", b"") for chunk in chunks):  # Open MPI may end a message with a zero byte
        if not at_start and chunk.startswith((RULE, b"mpidl: ", *STARTS)):
            yield b"\n"
            at_start = True
        pending += chunk
        while pending:
            length, shown = _next(pending, REDUNDANT + ENDS * survived()) if at_start else _line(pending)
            if length == 0:
                break
            if shown:
                yield pending[:length]
            at_start = pending[length - 1 : length] == b"\n"
            pending = pending[length:]
    if pending:
        yield pending


def _next(text: bytes, redundant_messages: Sequence[re.Pattern[bytes]]) -> tuple[int, bool]:
    """Return the length of the message or line that begins here (0 if its end is missing), and whether to show it."""
    if RULE.startswith(text[: len(RULE)]):
        end = text.find(b"\n" + RULE + b"\n", len(RULE))
        if end >= 0:
            length = end + len(RULE) + 2
            return length, not any(message.search(text[:length]) for message in redundant_messages)
        if len(text) < LONGEST:
            return 0, True
    redundant = [line for start, line in LINES if start.startswith(text[: len(start)])]
    if redundant and b"\n" not in text and len(text) < LONGEST:
        return 0, True
    length, _ = _line(text)
    return length, not any(line.fullmatch(text[:length]) for line in (*redundant, UNREACHED))


def _line(text: bytes) -> tuple[int, bool]:
    return text.find(b"\n") + 1 or len(text), True


#: Lines of Open MPI and Intel MPI that name a rank, its host and a signal. MPICH doesn't name the rank.
KILLED = (
    re.compile(rb"process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) exited on\s+signal (?P<signal>\d+)"),
    re.compile(rb"RANK (?P<rank>\d+) PID \d+ RUNNING AT (?P<host>\S+)\n[^\n]*KILLED BY SIGNAL: (?P<signal>\d+)"),
)
#: Open MPI's lines on a host that its launcher can't reach any more, or on which it lost its daemon.
LOST = (re.compile(rb"Remote daemon: +\S+ on node (?P<host>\S+)"), re.compile(rb"Remote host: +(?P<host>\S+)"))
#: Bytes at the end of a job's stderr that are searched.
TAIL = 1 << 14


class Cause(NamedTuple):
    """A line on the cause of a job's end, and the rank that has died with its role, if the cause is that."""

    line: str
    rank: int | None = None
    role: str = ""


class Deaths:
    """Finds the cause of a job's end in its stderr.

    `role` returns a rank's role, such as "worker 0"; "" if it is unknown. Lines name the host if there are `several`.
    """

    def __init__(self, role: Callable[[int], str], several: Callable[[], bool] = lambda: False) -> None:
        self._role, self._several = role, several
        self._tail = b""

    def watch(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the chunks unchanged."""
        for chunk in chunks:
            self._tail = (self._tail + chunk)[-TAIL:]
            yield chunk

    def cause(self) -> Cause | None:
        """Return the first rank killed by a signal, or host lost; None if none was named."""
        matches = chain.from_iterable(each.finditer(self._tail) for each in (*KILLED, *LOST))
        first = min(matches, key=re.Match.start, default=None)
        if first is None:
            return None
        host = first["host"].decode(errors="replace")
        if first.re in LOST:
            return Cause(f"host {host} is lost, or the launcher's daemon there")
        rank, number = int(first["rank"]), int(first["signal"])
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        role, where = self._role(rank), f" on {host}" if self._several() else ""
        return Cause(f"rank {rank}{f' ({role})' if role else ''}{where} was killed by {name}", rank, role)


#: What the launchers of MPICH and Intel MPI write, at once and as the last thing.
OBITUARY = re.compile(
    rb"\n=+\n=   BAD TERMINATION OF ONE OF YOUR APPLICATION.*|YOUR APPLICATION TERMINATED WITH THE EXIT.*", re.DOTALL
)

#: Seconds between two looks for a reason not to wait any longer.
LOOK_EVERY = 0.1


class Copied:
    """Copies a job's stdout to this process's own in a thread, as it arrives.

    MPICH's launcher ends a job if it can't write itself, and Open MPI's keeps silent. When the job has `survived()`,
    what a launcher writes in the end about ranks that have died is left out.
    """

    def __init__(self, stream: IO[bytes], survived: Callable[[], bool]) -> None:
        self._survived = survived
        self._stream, self._error = stream, None if sys.stdout is not None else OSError(errno.EBADF, "closed")
        self._copied = 0
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def _copy(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        with suppress(OSError, ValueError):  # the stream is closed: nothing more is wanted
            while chunk := os.read(self._stream.fileno(), 65536):
                if self._survived():
                    chunk = OBITUARY.sub(b"", chunk)
                self._copied += len(chunk)
                self._write(chunk)

    def _write(self, chunk: bytes) -> None:
        try:
            while chunk:
                chunk = chunk[os.write(STDOUT, chunk) :]
        except OSError as error:
            self._error = error

    def end(self, at_once: Callable[[], bool]) -> None:
        """Wait until all is copied, which may take as long as a reader wants, unless `at_once()`."""
        while self._thread.is_alive() and not at_once():
            self._thread.join(LOOK_EVERY)

    def lost(self, needed: bool) -> str | None:
        """Return why some of it couldn't be written; None if all was.

        Unless it is `needed`, stdout may be closed, and its reader may leave.
        """
        if self._error is None or not self._copied or not (needed or self._error.errno not in (*GONE, errno.EBADF)):
            return None
        return self._error.strerror
