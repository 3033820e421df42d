"""The terminal of ``mpidl train -n``: draws the progress that a rank tells of, and what the job writes above it."""

from __future__ import annotations

import os

import msgspec

from mpidl.launch.output import STDERR, tolerate_closed
from mpidl.report.progress import Progress, TerminalProgress, Title


class Screen:
    """Shows a job's stderr on this process' own."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._line = b""

    def hear(self, text: str) -> None:
        """Act on what a `mpidl.report.progress.Relay` tells."""
        verb, _, what = text.partition(" ")
        if verb == "begin":
            self._end_line()
            self._progress = TerminalProgress(msgspec.json.decode(what, type=Title))
        elif self._progress is None:
            return
        elif verb == "close":
            self.close()
        elif verb == "write":
            self._progress.write(msgspec.json.decode(what))
        elif verb == "update":
            self._progress.update(*msgspec.json.decode(what))

    def write(self, text: bytes) -> None:
        """Show text; where there is a bar, its lines above that."""
        if self._progress is None:
            with tolerate_closed(STDERR):
                os.write(STDERR, text)
            return
        *lines, self._line = (self._line + text).split(b"\n")
        for line in lines:
            self._progress.write(line.decode(errors="replace").rstrip("\r"))

    def close(self) -> None:
        """Draw the bar no more; show a line that has not ended."""
        if self._progress is not None:
            self._progress.close()
            self._progress = None
        self._end_line()

    def _end_line(self) -> None:
        line, self._line = self._line, b""
        if line:
            with tolerate_closed(STDERR):
                os.write(STDERR, line)
