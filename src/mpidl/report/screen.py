"""Output on a terminal: by ``mpidl train -n``, and by ranks whose launcher has stopped forwarding."""

from __future__ import annotations

import os

import msgspec

from mpidl.errors import escaped
from mpidl.launch.output import send, show, terminate
from mpidl.report.lines import Title
from mpidl.report.progress import TerminalProgress


class Screen:
    """Shows a job's stderr on this process' own."""

    def __init__(self) -> None:
        self._progress: TerminalProgress | None = None
        self._line = b""

    def hear(self, text: str) -> None:
        """Act on a message of `mpidl.report.progress.ForwardedProgress`."""
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
        """Show text, above the bar if there is one."""
        if self._progress is None:
            send(text, terminate)
            return
        *lines, self._line = (self._line + text).split(b"\n")
        for line in lines:
            self._progress.pass_on(line.decode(errors="replace").rstrip("\r"))

    def close(self) -> None:
        """Stop drawing the bar, and show an unfinished line."""
        if self._progress is not None:
            self._progress.close()
            self._progress = None
        self._end_line()

    def _end_line(self) -> None:
        line, self._line = self._line, b""
        if line:
            send(line, terminate)


def show_on_terminal(line: str) -> None:
    """Show a line on this process's terminal or, if there is none, on stderr."""
    try:
        terminal = os.open("/dev/tty", os.O_WRONLY | os.O_NOCTTY)
    except OSError:
        show(line)
        return
    try:
        os.write(terminal, f"{escaped(line)}\r\n".encode())
    finally:
        os.close(terminal)
