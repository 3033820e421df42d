"""The signals that ask a run to save and stop: held back while a process starts and ends, handled in between."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["STOPPING", "handled", "held", "hold", "release"]

#: Ctrl-C, a scheduler's notice that time is up, the signal that it can be told to send before, and a terminal's end.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


def hold() -> None:
    """Block the `STOPPING` signals: they would end a process that can't save yet, or has saved and is on its way out.

    Signals that come stay pending until `handled` takes them up; if nothing does, they end with the process.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)


def release(numbers: Iterable[int] = STOPPING) -> None:
    """Let signals act as they do in any program; those that came act now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


@contextmanager
def held() -> Iterator[None]:
    """Hold the `STOPPING` signals while the context is entered."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def handled(handle: Callable[[int, Any], None]) -> Iterator[None]:
    """Let `handle` take up the `STOPPING` signals, first those that were held.

    If any was held, they have no effect afterwards. A SIGHUP that is ignored stays so: ``nohup`` asks for that.
    """
    numbers = [each for each in STOPPING if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in numbers}
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    try:
        yield
    finally:
        hold()
        here = mask.isdisjoint(STOPPING)
        for number, handler in before.items():
            # Threads that have begun in between hold nothing back.
            signal.signal(number, handler if here else _ignore)
        if here:
            release()


def _ignore(number: int, frame: Any) -> None:
    """Do nothing, unlike SIG_IGN also in this process alone: a program that it starts gets the default action."""
