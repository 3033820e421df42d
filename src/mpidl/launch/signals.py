"""Signals that ask a run to save and stop: blocked while a process starts and ends, handled in between."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from mpidl.launch.output import finish

#: Ctrl-C, a scheduler's notice that time is up, its configurable warning before that, and a terminal that closes.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
#: Exit code of a process that such a signal has stopped after saving (EX_TEMPFAIL, "requeue me" to schedulers).
STOPPED = 75
#: Seconds that a script has to begin a training, or to end, before a held signal stops it: a scheduler gives 120.
PATIENCE = 50.0


def hold() -> None:
    """Block the `STOPPING` signals, which would kill a process that can't save yet, or has saved and is ending.

    They stay pending until `handled` delivers them, or the process ends.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)


def release(numbers: Iterable[int] = STOPPING) -> None:
    """Unblock signals; pending ones act now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


@contextmanager
def held() -> Iterator[None]:
    """Hold the `STOPPING` signals while the context is entered; afterwards they are handled as before.

    If the context is left by SystemExit, they are held again when the interpreter exits: others would kill a process
    that has saved and is ending. Only the main thread can do so; in another thread, nothing happens.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in STOPPING}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    except SystemExit:
        atexit.register(hold)
        raise
    finally:
        for number, handler in handlers.items():
            if handler is not None:  # not set by Python
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def discard() -> None:
    """Forget signals that came while they were blocked."""
    while pending := signal.sigpending().intersection(STOPPING):
        signal.sigwait(pending)


def stop_if_pending(tell: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Watch over held signals: if one is pending for some time, call `tell`, and end this process with code `STOPPED`.

    Nothing else would do so where a script takes its time before, between or after its trainings.
    """

    def watch() -> None:
        since = None
        while since is None or time.monotonic() - since < seconds:
            time.sleep(seconds / 50)
            since = (since or time.monotonic()) if signal.sigpending().intersection(STOPPING) else None
        tell()
        finish()
        os._exit(STOPPED)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def handled(handle: Callable[[int, Any], None]) -> Iterator[None]:
    """Handle the `STOPPING` signals by `handle`, pending ones first.

    If they were blocked before, they are ignored afterwards. An ignored SIGHUP stays ignored: ``nohup`` asks for that.
    Only the main thread can handle signals; in another thread, nothing happens.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [each for each in STOPPING if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in numbers}
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    try:
        yield
    finally:
        hold()
        here = mask.isdisjoint(STOPPING)
        for number, handler in before.items():
            # Threads started in between don't block signals.
            signal.signal(number, handler if here else _ignore)
        if here:
            release()


def _ignore(number: int, frame: Any) -> None:
    """Do nothing; unlike SIG_IGN, programs that this process starts don't inherit it."""
