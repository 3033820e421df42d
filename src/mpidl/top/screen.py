"""The terminal of ``mpidl top``: a screen that refreshes each second, or one look as plain text."""

from __future__ import annotations

import io
import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from mpidl.launch.output import deliver
from mpidl.top.view import view
from mpidl.top.watched import Watched

#: Seconds between two looks at the run's files.
EVERY = 1.0
#: Columns of plain text, unless the environment says how many there are.
COLUMNS = 100
#: Keys that end it.
QUIT = b"qQ\x03"


def show(directory: Path) -> None:
    """Show a run until a key or a signal ends that; once, as plain text, if stdout is no terminal."""
    watched = Watched(directory)
    if not (sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"):
        deliver(as_text(watched, shutil.get_terminal_size((COLUMNS, 0)).columns), end="", verbatim=True)
        return
    console = Console(highlight=False, markup=False, emoji=False)
    with (
        suppress(KeyboardInterrupt),
        _keys() as pressed,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            live.update(view(watched, *console.size), refresh=True)
            if pressed(EVERY):
                return
            watched.look()


def as_text(watched: Watched, width: int) -> str:
    """Return all that is known of a run, and of all of its ranks, as lines of at most `width` columns."""
    written = io.StringIO()
    console = Console(
        file=written, width=width, color_system=None, force_terminal=False, highlight=False, markup=False, emoji=False
    )
    console.print(view(watched, width))
    return "".join(f"{line.rstrip()}\n" for line in written.getvalue().splitlines())


@contextmanager
def _keys() -> Iterator[Any]:
    """Yield a function that waits for a number of seconds, or a change of the terminal's size; and says whether to end.

    Keys come one by one and unseen meanwhile, if stdin is a terminal. SIGTERM and SIGHUP end it like a key, so that
    the terminal is left as it was.
    """
    own, wake = os.pipe()
    os.set_blocking(wake, False)
    ended: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _: ended.append(number))
        for number in (signal.SIGTERM, signal.SIGHUP)
    } | {signal.SIGWINCH: signal.signal(signal.SIGWINCH, lambda *_: None)}
    before_wake = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    keyboard = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    before = None if keyboard is None else termios.tcgetattr(keyboard)
    if keyboard is not None:
        tty.setcbreak(keyboard)

    def pressed(seconds: float) -> bool:
        until = time.monotonic() + seconds
        sources = [own] if keyboard is None else [own, keyboard]
        while not ended and (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select(sources, [], [], left)
            if own in ready and signal.SIGWINCH in os.read(own, 64):
                break
            if keyboard in ready:
                keys = os.read(keyboard, 64) if keyboard is not None else b""
                if not keys or any(key in QUIT for key in keys):
                    return True
        return bool(ended)

    try:
        yield pressed
    finally:
        if keyboard is not None and before is not None:
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
        signal.set_wakeup_fd(before_wake)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(own)
        os.close(wake)
