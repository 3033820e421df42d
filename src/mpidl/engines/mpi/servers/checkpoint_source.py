"""What a worker that exchanges through servers contributes to checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mpidl.engines.mpi.checkpoint_source import CheckpointSource
from mpidl.engines.mpi.servers.connection import Connection
from mpidl.engines.mpi.servers.encodings import Encodings
from mpidl.storage.position import ReplicaPosition
from mpidl.transport.protocol import Order, ShardClock
from mpidl.transport.status import Status


class ServersCheckpoint(CheckpointSource):
    """Marks orders behind pushes, and keeps the state of encodings.

    Parameters
    ----------
    connection : Connection
    encodings : Encodings
    status : Status
    in_rounds : bool
        Whether servers apply pushes in rounds, as in a deterministic run: orders are then obeyed after a number of
        pushes that the coordinator decides.
    """

    def __init__(self, connection: Connection, encodings: Encodings, status: Status, in_rounds: bool) -> None:
        super().__init__()
        self.together = in_rounds
        self._connection, self._encodings, self._status = connection, encodings, status

    def order(self, told: Order, marked: int) -> Order:
        if not self.together:
            return told
        pushes = int(self._status.figures["pushes"])
        self._connection.wait(lambda: self._begin_round(pushes + 1))
        order, decided = self._round
        return order if order.number == marked or pushes == decided else order._replace(number=marked)

    def _begin_round(self, pushes: int) -> bool:
        self._round = self._link.orders.begin_round(pushes)
        return self._round[1] is not None

    def mark(self, order: int) -> bool:
        return self._link.pushes.mark(order)

    def last_fetched(self) -> list[list[int]]:
        fetched: list[list[int]] = self._connection.fetched.tolist()
        return fetched

    def vectors(self) -> dict[str, np.ndarray]:
        return self._encodings.vectors()

    def load(self, position: ReplicaPosition, vectors: Mapping[str, np.ndarray]) -> None:
        # No push has arrived in part, so that all clocks are those of any shard.
        clocks = [clocks[ShardClock.CLOCK] for clocks in position.fetched]
        self._connection.fetched[:, ShardClock.CLOCK] = max(clocks, default=-1)
        self._encodings.load(vectors)
