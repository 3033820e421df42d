"""Signals that ask a run to save and stop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: Ctrl-C, a scheduler's notice that time is up, and the signal that schedulers can be told to send before it.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def defer() -> None:
    """Block the scheduler's signal, which would end a process that is still starting, until `stopping` handles it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})


@contextmanager
def stopping(interrupt: Callable[[], None]) -> Iterator[None]:
    """Call `interrupt` at each of the `STOPPING` signals; a second Ctrl-C ends the process at once."""

    def handle(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        interrupt()

    before = {number: signal.signal(number, handle) for number in STOPPING}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
