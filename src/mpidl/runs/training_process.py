"""The process while it trains: signals that stop the run, NumPy's warnings and the garbage collector."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, NoReturn

import numpy as np

from mpidl.launch import environment, marks
from mpidl.launch.output import say
from mpidl.launch.signals import STOPPED, handled
from mpidl.runs.agreement import ranks

#: Seconds in which a second SIGINT counts as the first: a terminal and a launcher may both send one for a Ctrl-C.
SAME = 0.5


@contextmanager
def undisturbed() -> Iterator[None]:
    """Turn off NumPy's warnings and spare the garbage collector the objects that exist already.

    A run checks its losses itself, and one line says which is not finite. Scanning what was imported, such as PyTorch,
    takes the collector as long as a step.
    """
    gc.freeze()
    try:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            yield
    finally:
        gc.unfreeze()


@contextmanager
def stopping(interrupt: Callable[[int], None]) -> Iterator[None]:
    """Call `interrupt` with the number of each signal that asks to stop; a second Ctrl-C ends the process at once."""
    first: float | None = None

    def handle(number: int, frame: Any) -> None:
        nonlocal first
        if number == signal.SIGINT:
            if first is None:
                first = monotonic()
            elif monotonic() - first > SAME:
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
        interrupt(number)

    with handled(handle):
        yield


def end_stopped(advice: str) -> NoReturn:
    """End a script after a run that a signal has stopped, with the command's exit code and advice on how to continue.

    An interactive session goes on, as after Ctrl-C anywhere else.
    """
    rank, _ = ranks()
    if rank == 0:
        if not environment.under_foreign_launcher():
            say(f"stopped by a signal, and saved; {advice}")
        marks.tell_done(STOPPED, environment.world().size)
    raise KeyboardInterrupt if hasattr(sys, "ps1") else SystemExit(STOPPED)
