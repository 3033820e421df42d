"""Pushes that leave while the gradient is computed: wait-free back-propagation."""

from __future__ import annotations

from typing import Any

from mpidl.engines.mpi.servers.connection import Connection
from mpidl.nn.capabilities import report_final


class WaitFreePush:
    """Sends what a model reports as final of a gradient; `Connection.deliver` sends the rest.

    Parameters
    ----------
    connection : Connection
    model : Model
    """

    def __init__(self, connection: Connection, model: Any) -> None:
        self._connection, self._model = connection, model
        report_final(model, self._send)

    def _send(self, gradient: Any, start: int) -> None:
        self._connection.begin_push(gradient, zero_copy=True)
        self._connection.send(gradient, start)

    def end(self) -> None:
        """Let the model report nothing any more."""
        report_final(self._model, None)
