"""Turns of a process's threads: MPI libraries that may be called by several at a time are slower for all calls."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class Turn:
    """The turn to call MPI, in the order in which threads ask for it; the one that makes this object has it first."""

    def __init__(self) -> None:
        self._guard, self._taken = threading.Lock(), True
        self._asking: deque[threading.Lock] = deque()

    def take(self) -> None:
        """Wait for this thread's turn."""
        with self._guard:
            if not self._taken:
                self._taken = True
                return
            called = threading.Lock()
            called.acquire()
            self._asking.append(called)
        called.acquire()

    def leave(self) -> None:
        """Give the turn to the next thread."""
        with self._guard:
            if self._asking:
                self._asking.popleft().release()
            else:
                self._taken = False

    def pass_on(self) -> None:
        """Let others have their turns first, if they ask for it."""
        if self._asking:
            self.leave()
            self.take()

    @contextmanager
    def left(self) -> Iterator[None]:
        """Leave the turn to others while this thread waits in another way than by MPI."""
        self.leave()
        try:
            yield
        finally:
            self.take()
