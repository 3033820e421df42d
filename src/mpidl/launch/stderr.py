"""Removes what mpirun adds to the stderr of a job that has already said how it ended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

__all__ = ["quieten"]

#: Open MPI writes a message between two of these lines.
RULE = b"-" * 74

#: Bytes of the longest message whose end is waited for.
LONGEST = 4096

#: Exit codes of mpidl itself, which has then printed a line that says why, if there is anything to say.
CODE = rb"(?:1|2|75)\b"

#: Messages that only repeat such an exit code, or that a rank died of a signal that mpidl sent.
REDUNDANT = (
    re.compile(rb"processes exited with non-zero status.*Exit code:\s+" + CODE, re.DOTALL),
    re.compile(rb"returned\s+a non-zero exit code"),
    re.compile(rb"MPI_ABORT was invoked on rank.*rrorcode:? " + CODE, re.DOTALL),
    re.compile(rb"exited on\s+signal 10 \(User defined signal 1\)"),  # asked to stop before its handler was there
    re.compile(rb'has exited due to process rank \d+.*calling\s+"abort"', re.DOTALL),
)

#: How a line begins that only repeats such a code (MPICH, Intel MPI), or that tells of a file which the launcher closed
#: before it had done with it (Open MPI); and the line.
LINES = (
    (b"Abort(", re.compile(rb"Abort\(" + CODE + rb"\) on node \d+ .*: application called MPI_Abort\(.*\n")),
    (b"[warn] Epoll ", re.compile(rb"\[warn\] Epoll .*Bad file descriptor\n")),
)
STARTS = tuple(start for start, _ in LINES)
#: What Open MPI says where it has an answer for a rank that has ended. A bar of a user's own may begin like it, so that
#: nothing is held back until its end is known.
UNREACHED = re.compile(rb"\[[^\]\n]+:\d+\] PMIX ERROR: PMIX_ERR_UNREACH in file \S+/pmix_server\.c at line \d+\n")


def quieten(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a job's stderr as it arrives, without the launcher's messages about exit codes of mpidl itself.

    Parameters
    ----------
    chunks : iterable of bytes
        The output, as it is read. A message of mpidl or of the launcher that follows a line without an end, such as a
        bar of a user's own, is put on a line of its own.
    """
    pending, at_start = b"", True
    for chunk in (chunk.replace(b"\0", b"") for chunk in chunks):  # Open MPI may end a message with a zero byte
        if not at_start and chunk.startswith((RULE, b"mpidl: ", *STARTS)):
            yield b"\n"
            at_start = True
        pending += chunk
        while pending:
            length, shown = _next(pending) if at_start else _line(pending)
            if length == 0:
                break
            if shown:
                yield pending[:length]
            at_start = pending[length - 1 : length] == b"\n"
            pending = pending[length:]
    if pending:
        yield pending


def _next(text: bytes) -> tuple[int, bool]:
    """Return the length of the message or line that begins here, 0 if its end is missing, and whether to show it."""
    if RULE.startswith(text[: len(RULE)]):
        end = text.find(b"\n" + RULE + b"\n", len(RULE))
        if end >= 0:
            length = end + len(RULE) + 2
            return length, not any(message.search(text[:length]) for message in REDUNDANT)
        if len(text) < LONGEST:
            return 0, True
    redundant = [line for start, line in LINES if start.startswith(text[: len(start)])]
    if redundant and b"\n" not in text and len(text) < LONGEST:
        return 0, True
    length, _ = _line(text)
    return length, not any(line.fullmatch(text[:length]) for line in (*redundant, UNREACHED))


def _line(text: bytes) -> tuple[int, bool]:
    return text.find(b"\n") + 1 or len(text), True
