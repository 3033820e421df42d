"""Prefetching: parameters are fetched while the worker computes, one request ahead."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpidl.engines.mpi.servers.connection import Connection
from mpidl.engines.mpi.servers.in_order import InOrder


class Prefetching(InOrder):
    """A fetch copies the values that the one before began to fetch, and begins the next one."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._prefetched: Any = None

    def fetch(self, parameters: Any, newer: bool) -> None:
        self._take(parameters)
        self._connection.start_fetch(self._prefetched, self._clocks)

    def _take(self, parameters: Any) -> None:
        """Copy the prefetched values; the first time, fetch them before."""
        if self._prefetched is None:
            self._prefetched = np.empty_like(parameters)
            self._connection.start_fetch(self._prefetched, self._clocks)
        self._connection.finish_behind_push()
        self._connection.finish_fetch(self._prefetched, self._clocks)
        np.copyto(parameters, self._prefetched)


class PrefetchingBehindPush(Prefetching):
    """A fetch begins behind the push before it, ahead of which the worker takes the prefetched values."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._taken = False

    def fetch(self, parameters: Any, newer: bool) -> None:
        if self._taken:
            self._taken = False
            return
        super().fetch(parameters, newer)

    def push(self, vector: Any) -> None:
        connection = self._connection
        connection.begin_push(vector, zero_copy=False)
        # Values that have arrived behind the previous push show, too, that there is room for this one.
        self._take(connection.parameters)
        self._taken = True
        connection.deliver(vector)
        behind = connection.start_behind_push(self._prefetched, self._clocks)
        connection.start_fetch(self._prefetched, self._clocks, behind)
