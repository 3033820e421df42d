"""Fetches and pushes one after the other, or overlapping each other and the computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from mpidl.engines.mpi.servers.connection import Connection
from mpidl.nn.model import GivenUp, GradientObserver


class InOrder:
    """A fetch begins when the servers have applied the worker's pushes, and ends when it has arrived.

    If `zero_copy`, a vector that is pushed stays as it is until the next fetch.
    """

    def __init__(self, connection: Connection, zero_copy: bool = False) -> None:
        self._connection, self._zero_copy = connection, zero_copy
        self._clocks = connection.clocks()

    def fetch(self, parameters: Any, newer: bool) -> None:
        """Carry out a `Fetch`."""
        connection, link = self._connection, self._connection.link
        behind = connection.finish_behind_push()
        connection.wait(link.pushes.applied)
        if newer:
            connection.wait(lambda: link.fetches.all_newer(connection.fetched))
        connection.start_fetch(parameters, self._clocks, behind)
        connection.finish_fetch(parameters, self._clocks)
        connection.count_behind_push(parameters, behind)

    def push(self, vector: Any) -> None:
        """Carry out a `Push`."""
        self._connection.begin_push(vector, self._zero_copy)
        self._connection.deliver(vector)


class BehindPush(InOrder):
    """A fetch begins behind the push before it, from the servers that can answer it, and chunk by chunk."""

    def push(self, vector: Any) -> None:
        super().push(vector)
        self._connection.start_behind_push(self._connection.parameters, self._clocks)


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


class Reports:
    """Has a model report what is final of a gradient, to `take`, while it computes the rest."""

    def __init__(self, model: Any, take: GradientObserver) -> None:
        self._model, self._take = model, take
        model.report_final(take)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let the model report nothing meanwhile."""
        self.end()
        yield
        self._model.report_final(self._take)

    def end(self) -> None:
        """Let the model report nothing any more."""
        self._model.report_final(None)


class WaitFreePush(Reports):
    """Sends what a model reports as final of a gradient; `Connection.deliver` sends the rest."""

    def __init__(self, connection: Connection, model: Any) -> None:
        self._connection = connection
        super().__init__(model, self._send)

    def _send(self, gradient: Any, start: int) -> None:
        self._connection.begin_push(gradient, zero_copy=True)
        self._connection.send(gradient, start)


class LateGradients(Reports):
    """Gives a gradient up when it is `late`, as soon as the model reports a part of it."""

    def __init__(self, model: Any, late: Callable[[], bool]) -> None:
        self._late = late
        super().__init__(model, self._look)

    def _look(self, gradient: Any, start: int) -> None:
        if self._late():
            raise GivenUp("late")
