"""The terminal of ``mpidl top``: a screen that refreshes each second, or one look as plain text."""

from __future__ import annotations

import io
import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.screen import Screen

from mpidl.launch.output import STDOUT, deliver
from mpidl.top.view import view
from mpidl.top.watched import Watched

#: Seconds between two looks at the run's files.
EVERY = 1.0
#: Columns of plain text, unless the environment says how many there are.
COLUMNS = 100
#: Keys that end it.
QUIT = b"qQ\x03"
#: Signals that end it.
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: The other screen without a cursor, the terminal's own with one, and the first place of a screen.
ENTER, LEAVE, HOME = b"\x1b[?1049h\x1b[?25l", b"\x1b[0m\x1b[?25h\x1b[?1049l", b"\x1b[H"


def show(directory: Path) -> None:
    """Show a run until a key or a signal ends that; once, as plain text, if stdout is no terminal."""
    watched = Watched(directory)
    if not (sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"):
        deliver(as_text(watched, shutil.get_terminal_size((COLUMNS, 0)).columns), end="")
        return
    console = Console(highlight=False, markup=False, emoji=False)
    with suppress(KeyboardInterrupt), _keys() as pressed:
        while True:
            with console.capture() as drawn:
                console.print(Screen(view(watched, *console.size, console.options.ascii_only)), end="")
            _write(HOME + drawn.get().encode(console.encoding, "replace"))
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


def _write(content: bytes) -> None:
    """Write to the terminal without a buffer that could hold back its restoration."""
    while content:
        content = content[os.write(STDOUT, content) :]


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Yield a function that waits for a number of seconds, a key or a signal, and says whether a key is to end it.

    Meanwhile the terminal shows its other screen, and keys come one by one and unseen, if stdin is a terminal. SIGTERM,
    SIGHUP and SIGQUIT end it like Ctrl-C. However it ends, and while Ctrl-Z stops it, the terminal is as it was.
    """
    own, wake = os.pipe()
    os.set_blocking(wake, False)
    keyboard = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    before = None if keyboard is None else termios.tcgetattr(keyboard)

    def enter() -> None:
        if keyboard is not None:
            tty.setcbreak(keyboard)
        _write(ENTER)

    def leave() -> None:
        with suppress(OSError):  # the terminal has gone
            _write(LEAVE)
        if keyboard is not None and before is not None:
            with suppress(termios.error):
                termios.tcsetattr(keyboard, termios.TCSADRAIN, before)

    def suspend(*_: Any) -> None:
        leave()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, suspend)
        enter()

    def pressed(seconds: float) -> bool:
        ready, _, _ = select.select([own] if keyboard is None else [own, keyboard], [], [], seconds)
        if own in ready:
            os.read(own, 64)
        keys = os.read(keyboard, 64) if keyboard is not None and keyboard in ready else None
        return keys is not None and (not keys or any(key in QUIT for key in keys))

    actions: dict[int, Any] = dict.fromkeys(ENDING, signal.default_int_handler)
    actions |= {signal.SIGWINCH: lambda *_: None, signal.SIGTSTP: suspend}
    handlers = {number: signal.signal(number, action) for number, action in actions.items()}
    before_wake = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        enter()
        yield pressed
    finally:
        for ending in ENDING:  # once is enough
            signal.signal(ending, signal.SIG_IGN)
        leave()
        signal.set_wakeup_fd(before_wake)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(own)
        os.close(wake)
