"""The terminal of a job whose launcher no longer passes on what its ranks write."""

from __future__ import annotations

import os


def show_on_terminal(line: str) -> None:
    """Show a line on the terminal that this process belongs to or, if there is none, on stderr."""
    try:
        terminal = os.open("/dev/tty", os.O_WRONLY | os.O_NOCTTY)
    except OSError:
        os.write(2, f"{line}\n".encode())
        return
    try:
        os.write(terminal, f"{line}\r\n".encode())
    finally:
        os.close(terminal)
