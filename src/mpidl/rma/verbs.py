"""The verbs by which ranks reach each other's memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI


class RemoteMemory(Protocol):
    """Memory of every rank of a communicator, divided into named regions that all ranks read and write.

    Creation, `quiesce` and `free` are collective. Offsets and counts are in elements of the region's dtype. What `get`
    and `fetch_and_op` start is complete after `flush`; what `put` starts is complete once a rank that knows of it, or
    `quiesce`, says so. A rank is reached only while it keeps calling `serve`, `flush` or `quiesce`.

    `supports_deferred_get` says whether ranks carry out `get_when`: they do by messages, and not through a window. Long
    values are transferred in pieces of `piece` bytes.
    """

    supports_deferred_get: bool
    piece: int

    def local(self, name: str) -> np.ndarray:
        """Return this rank's region as a 1-D array on the memory itself."""
        ...

    def to(self, rank: int) -> RemoteMemory:
        """Return the memory whose verbs from `put` to `on_host` reach `rank`, to be chosen once and then used."""
        ...

    def as_rank(self, rank: int) -> RemoteMemory:
        """Return this memory as another rank of this node sees it, whose process has ended: its regions are local.

        Raise ValueError if its memory isn't shared.
        """
        ...

    def put(self, values: Any, rank: int, name: str, offset: int = 0, *, zero_copy: bool = False) -> None:
        """Start writing contiguous `values`, in host or device memory, into a region of `rank`.

        The caller keeps them unchanged until `fence` of `rank`. With `zero_copy`, they may be sent from where they
        are: the caller keeps them unchanged until `flush` of `rank`.
        """

    def get(self, values: Any, rank: int, name: str, offset: int = 0) -> None:
        """Start reading a part of a region of `rank` into contiguous `values`, in host or device memory."""

    def get_when(self, values: Any, rank: int, name: str, offset: int, counter: str, element: int, least: int) -> None:
        """Start reading as `get` does once an int64 of `rank`, an element of the region `counter`, is `least` or more.

        `rank` itself raises it. Such answers arrive in the order of the calls.
        """

    def watch(self, rank: int, name: str, element: int, least: int) -> Callable[[], bool]:
        """Return a function that tells whether an int64 of `rank`, an element of a region, is `least` or more.

        Call it until it returns True. If `rank` supports deferred gets, it receives a single request, which it checks
        whenever it serves; its answer follows those to earlier calls of `get_when` and `watch`, and `flush` doesn't
        wait for it. Through a window, each call reads the value.
        """
        ...

    def fetch_and_op(
        self, value: np.ndarray, before: np.ndarray, rank: int, name: str, offset: int, op: MPI.Op
    ) -> None:
        """Start an atomic operation on one int64; `before` receives the value it had."""

    def fence(self, rank: int) -> None:
        """Make operations started from now on reach `rank` after all earlier puts.

        The values of these may change now, except those put with `zero_copy`.
        """

    def flush(self, rank: int) -> None:
        """Wait until everything requested from `rank` has arrived here and zero-copy values have been sent."""

    def on_host(self, values: Any, rank: int) -> np.ndarray:
        """Return `values`, or a host copy of device values, valid until `fence` or `flush` of `rank`."""
        ...

    def sync(self) -> None:
        """Order local loads and stores on this memory with the reads and writes of other ranks."""

    def serve(self) -> bool:
        """Advance other ranks' operations on this memory without waiting; return whether there were any."""
        ...

    def attended(self) -> AbstractContextManager[None]:
        """Return a context in which the caller keeps calling `serve`, so that nothing else needs to make progress."""
        ...

    def quiesce(self) -> None:
        """Wait for all ranks, serving them, until every operation started by any of them is complete; collective."""

    def free(self) -> None:
        """Give the memory back; collective. Arrays from `local` are invalid afterwards."""
