"""The interface between the virtual engine and each way of exchanging parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mpidl.engines.virtual.cluster import VirtualReplica
from mpidl.engines.virtual.processes import Process

#: Carries out one request of a replica; the process returns the answer.
Action = Callable[[VirtualReplica, Any], Process]


class RequestHandler:
    """Carries out the requests of one kind of exchange, for all replicas.

    Attributes
    ----------
    actions : mapping of type to callable
        The action for each type of request.
    """

    actions: Mapping[type, Action]

    def add_replica(self, replica: VirtualReplica) -> None:
        """Let others wait for a replica that has returned; by default nobody does."""

    def wait_applied(self, replica: VirtualReplica) -> Process:
        """Wait until all that a replica has sent is applied; by default nothing is ever under way."""
        yield from ()

    def remove_replica(self, replica: VirtualReplica) -> Process:
        """Let nobody wait for a replica that has ended or died; by default nobody does."""
        yield from ()
