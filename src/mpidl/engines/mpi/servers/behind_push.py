"""Fetches behind pushes: the servers answer as soon as they have applied the push."""

from __future__ import annotations

from typing import Any

from mpidl.engines.mpi.servers.in_order import InOrder


class BehindPush(InOrder):
    """A fetch begins behind the push before it, from the servers that can answer it, and chunk by chunk."""

    def push(self, vector: Any) -> None:
        super().push(vector)
        self._connection.start_behind_push(self._connection.parameters, self._clocks)
