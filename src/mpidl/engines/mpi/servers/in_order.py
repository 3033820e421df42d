"""Fetch and push one after the other."""

from __future__ import annotations

from typing import Any

from mpidl.engines.mpi.servers.connection import Connection


class InOrder:
    """A fetch begins when the servers have applied the worker's pushes, and ends when it has arrived.

    Parameters
    ----------
    connection : Connection
    zero_copy : bool
        Whether a vector that is pushed stays as it is until the next fetch.
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
