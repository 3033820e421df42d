"""The verbs by which ranks reach each other's memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI


class RemoteMemory(Protocol):
    """Memory of every rank of a communicator, cut into named regions that all ranks read and write.

    Creation, `settle` and `free` are collective. Offsets and counts are in elements of the region's dtype. Nothing
    that `get` or `fetch_and_op` starts is complete before `flush`; what `put` starts is complete once a rank that
    knows of it, or `settle`, says so. Only a rank that keeps calling `serve`, `flush` or `settle` is reached by others.
    """

    def local(self, name: str) -> np.ndarray:
        """Return this rank's region as a 1-D array on the memory itself."""
        ...

    def put(self, values: Any, rank: int, name: str, offset: int = 0, *, stays: bool = False) -> None:
        """Start writing contiguous `values`, the host's or a device's, into a region of `rank`.

        The caller keeps them, unchanged, until `order` of `rank`. With `stays`, they may travel from where they are:
        the caller keeps them until `flush` of `rank`.
        """

    def get(self, values: Any, rank: int, name: str, offset: int = 0) -> None:
        """Start reading a part of a region of `rank` into contiguous `values`, the host's or a device's."""

    def answers_later(self, rank: int) -> bool:
        """Return whether `rank` can be asked by `get_later`: by messages, and not through a window."""
        ...

    def piece(self, rank: int) -> int:
        """Return of how many bytes the pieces are in which long values travel to and from `rank`."""
        ...

    def get_later(self, values: Any, rank: int, name: str, offset: int, counter: str, element: int, least: int) -> None:
        """Start reading as `get` does once an int64 of `rank`, an element of the region `counter`, is `least` or more.

        `rank` itself raises it. Such answers arrive in the order in which they were asked for.
        """

    def watch(self, rank: int, name: str, element: int, least: int) -> Callable[[], bool]:
        """Return a function that tells whether an int64 of `rank`, an element of a region, is `least` or more.

        It is to be called until that is so. `rank` itself, if it `answers_later`, is asked once: it looks whenever it
        serves, its answer waits for those that it owes by `get_later` and `watch` from before, and `flush` doesn't wait
        for it. Through a window each call looks.
        """
        ...

    def fetch_and_op(
        self, value: np.ndarray, before: np.ndarray, rank: int, name: str, offset: int, op: MPI.Op
    ) -> None:
        """Start an atomic operation on one int64; `before` receives the value it had."""

    def order(self, rank: int) -> None:
        """Let what is started from now on reach `rank` after what was put before, whose values may now change.

        Values that stay may not yet.
        """

    def flush(self, rank: int) -> None:
        """Wait until everything that was asked of `rank` has arrived here, and values that stay have left for it."""

    def on_host(self, values: Any, rank: int) -> np.ndarray:
        """Return `values`, or a copy if they are a device's, valid until `order` or `flush` of `rank`."""
        ...

    def sync(self) -> None:
        """Order local loads and stores on this memory with what other ranks read and write."""

    def serve(self) -> bool:
        """Let other ranks' operations on this memory go on, without waiting; return whether there were any."""
        ...

    def attended(self) -> AbstractContextManager[None]:
        """Return a context in which the caller goes on calling `serve`, as often as something happens.

        Nothing else has to let what it has started go on.
        """
        ...

    def settle(self) -> None:
        """Wait for all ranks, serving them, until all that any of them has started is complete; collective."""

    def free(self) -> None:
        """Give the memory back; collective. Arrays from `local` are invalid afterwards."""
