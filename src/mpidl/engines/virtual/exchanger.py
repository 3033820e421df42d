"""What exchanges with the servers of the virtual cluster."""

from __future__ import annotations

import numpy as np
import simpy

from mpidl.engines.virtual.server import VirtualServer
from mpidl.wire import Differences, ErrorFeedback, Wire


class Exchanger:
    """A replica, or the relay of several, which pushes to the servers and fetches from them.

    Parameters
    ----------
    number : int
        Replicas come first, then relays.

    Attributes
    ----------
    fetched : list of int
        The clock of each shard at the last fetch.
    unapplied : list of simpy.Process
        Deliveries of its pushes that may still be under way.
    following : dict of int to simpy.Process
        Fetches behind its last push, by the number of the server.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.fetched: list[int] = []
        self.unapplied: list[simpy.Process] = []
        self.following: dict[int, simpy.Process] = {}
        self._feedback: list[ErrorFeedback] = []
        self._residual: np.ndarray | None = None
        self._copies: dict[VirtualServer, Differences] = {}
        self._copy: np.ndarray | None = None

    def encodings(self) -> dict[str, np.ndarray]:
        """Return a copy of what its encodings keep."""
        # Before its first push, a resumed replica has the residual that it had.
        residual = np.concatenate([each.residual for each in self._feedback]) if self._feedback else self._residual
        copies = list(self._copies.values())
        begun = bool(copies) and all(each.begun for each in copies)
        copy = np.concatenate([each.values for each in copies]) if begun else self._copy
        kept = {"residual": residual, "copy": copy}
        return {name: vector for name, vector in kept.items() if vector is not None}

    def encode(self, wire: Wire, servers: list[VirtualServer], vector: np.ndarray, decoded: np.ndarray) -> int:
        """Send a vector through a wire format to all servers, and return the number of bytes it takes.

        Parameters
        ----------
        wire : Wire
        servers : list of VirtualServer
        vector : array, shape (size,) or (2, size)
        decoded : array like `vector`
            Overwritten with what arrives.
        """
        if not self._feedback:
            self._feedback = [
                ErrorFeedback(wire, server.shard.range.size, vector.dtype, server.shard.statistics)
                for server in servers
            ]
            for server, feedback in zip(servers, self._feedback, strict=True):
                if self._residual is not None:
                    feedback.residual[:] = self._residual[server.part]
        return sum(
            feedback.round_trip(vector[..., server.part], server.shard.pieces[0].size, decoded[..., server.part])
            for server, feedback in zip(servers, self._feedback, strict=True)
        )

    def copy(self, wire: Wire, servers: list[VirtualServer], server: VirtualServer) -> Differences:
        """Return what it has of a server's shard, where fetches are encoded by `wire`."""
        for each in () if self._copies else servers:
            parameters, kept = each.shard.parameters, self._copy
            values = np.empty_like(parameters) if kept is None else kept[each.part].astype(parameters.dtype)
            self._copies[each] = Differences(wire, values, kept is not None, each.shard.statistics)
        return self._copies[server]
