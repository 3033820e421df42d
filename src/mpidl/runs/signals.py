"""Signals that ask a run to save and stop, while it trains."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from mpidl.launch.signals import handled

#: Seconds in which a second SIGINT counts as the first: a terminal and a launcher may both send one for a Ctrl-C.
SAME = 0.5


@contextmanager
def stopping(interrupt: Callable[[], None]) -> Iterator[None]:
    """Call `interrupt` at each signal that asks to stop; a second Ctrl-C ends the process at once."""
    first: float | None = None

    def handle(number: int, frame: Any) -> None:
        nonlocal first
        if number == signal.SIGINT:
            if first is None:
                first = monotonic()
            elif monotonic() - first > SAME:
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
        interrupt()

    with handled(handle):
        yield
