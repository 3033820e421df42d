"""A job's stdout on this process's own, which may be full or closed."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import IO

from mpidl.launch.output import GONE, STDOUT

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
