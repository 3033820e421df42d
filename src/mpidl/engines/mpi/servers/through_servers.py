"""Fetch and push by way of the servers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mpidl.algorithms.algorithm import Pattern
from mpidl.algorithms.requests import Fetch, Push
from mpidl.engines.mpi.request_handler import RequestHandler
from mpidl.engines.mpi.servers.behind_push import BehindPush
from mpidl.engines.mpi.servers.connection import Connection
from mpidl.engines.mpi.servers.in_order import InOrder
from mpidl.engines.mpi.servers.prefetching import Prefetching, PrefetchingBehindPush
from mpidl.engines.mpi.servers.wait_free import WaitFreePush
from mpidl.nn.model import PlacedModel
from mpidl.parameters.ranges import Range, within
from mpidl.rma.worker import WorkerLink
from mpidl.storage.position import ReplicaPosition
from mpidl.transport.protocol import Order, ShardClock
from mpidl.wire import Differences, ErrorFeedback, Wire


class ThroughServers(RequestHandler):
    """Carries out the requests of a worker that exchanges through servers.

    Parameters
    ----------
    shards : sequence of Range
        The shards that make up the worker's slice of the vector, counted from its beginning.
    dtype : dtype
        The parameters' dtype.
    wire, wire_fetch : Wire, optional
        How pushes, and how fetches are encoded.
    pattern : Pattern, optional
        What holds for the replica's requests.
    model : PlacedModel, optional
        Computes the gradients, which may leave while it does so; None if each push must be whole when it begins.
    in_rounds : bool
        Whether servers apply pushes in rounds, as in a deterministic run.
    statistics : sequence of Range
        Ranges of the slice that hold statistics, which are not encoded.

    Attributes
    ----------
    connection : Connection
    """

    def __init__(
        self,
        shards: Sequence[Range],
        dtype: Any,
        wire: Wire | None = None,
        wire_fetch: Wire | None = None,
        *,
        pattern: Pattern | None = None,
        model: PlacedModel | None = None,
        in_rounds: bool = False,
        statistics: Sequence[Range] = (),
    ) -> None:
        super().__init__()
        self.together = in_rounds
        self.actions = {Fetch: self._fetch, Push: self._push}
        if wire is not None:
            self.feedback = [ErrorFeedback(wire, shard.size, dtype, within(statistics, shard)) for shard in shards]
        if wire_fetch is not None:
            self.copies = [
                Differences(wire_fetch, np.zeros(shard.size, dtype), statistics=within(statistics, shard))
                for shard in shards
            ]
        self._pattern, self._model = pattern or Pattern(), model
        self._wait_free: WaitFreePush | None = None
        self.connection = Connection(
            shards, self.status, self.unpushed, self.copies, lambda order: self.cut_seen(order)
        )

    def bind(self, link: WorkerLink) -> None:
        """Choose the order of steps that the link and the replica's requests allow."""
        super().bind(link)
        self.connection.bind(link)
        pattern = self._pattern
        # Rounds are the same wherever ranks are.
        behind = pattern.fetches_next and not self.together and link.fetches.can_follow
        if pattern.prefetches:
            self._exchange: InOrder = (PrefetchingBehindPush if behind else Prefetching)(self.connection)
        else:
            self._exchange = (BehindPush if behind else InOrder)(self.connection, zero_copy=pattern.fetches_next)
        if pattern.pushes_gradients and self._model is not None:
            self._wait_free = WaitFreePush(self.connection, self._model)

    def unbind(self) -> None:
        """Let a fetch that has begun arrive before, unless it is encoded."""
        self._link.fetches.finish()
        if self._wait_free is not None:
            self._wait_free.end()

    def applied(self) -> bool:
        return self._link.pushes.applied()

    # Checkpoints.

    def order(self, told: Order, marked: int) -> Order:
        """In rounds, obey an order after as many pushes as it says."""
        if not self.together:
            return told
        pushes = int(self.status.figures["pushes"])
        self.connection.wait(lambda: self._begin_round(pushes + 1))
        order, decided = self._round
        return order if order.number == marked or pushes == decided else order._replace(number=marked)

    def _begin_round(self, pushes: int) -> bool:
        self._round = self._link.orders.begin_round(pushes)
        return self._round[1] is not None

    def mark(self, order: int) -> bool:
        return self._link.pushes.mark(order)

    def last_fetched(self) -> list[list[int]]:
        fetched: list[list[int]] = self.connection.fetched.tolist()
        return fetched

    def vectors(self) -> dict[str, np.ndarray]:
        """Return the residual of the wire format, and the copy that follows the shards."""
        vectors = {"residual": np.concatenate([each.residual for each in self.feedback])} if self.feedback else {}
        if self.copies and all(each.begun for each in self.copies):
            vectors["copy"] = np.concatenate([each.values for each in self.copies])
        return vectors

    def load(self, position: ReplicaPosition, vectors: Mapping[str, np.ndarray]) -> None:
        super().load(position, vectors)
        # No push has arrived in part, so that all clocks are those of any shard.
        clocks = [clocks[ShardClock.CLOCK] for clocks in position.fetched]
        self.connection.fetched[:, ShardClock.CLOCK] = max(clocks, default=-1)
        start = 0
        for feedback in self.feedback if "residual" in vectors else ():
            size = feedback.residual.size
            feedback.residual[:] = vectors["residual"][start : start + size]
            start += size
        start = 0
        for copy in self.copies if "copy" in vectors else ():
            copy.copy(vectors["copy"][start : start + copy.values.size])
            start += copy.values.size

    # Requests.

    def fetch(self, parameters: np.ndarray) -> None:
        self.connection.finish_behind_push()
        self.connection.wait(self.applied)
        self._link.fetches.read_present(parameters)

    def end_pushes(self) -> None:
        self.connection.wait(self._link.pushes.end)

    def _fetch(self, request: Fetch) -> None:
        figures = self.status.figures
        if not figures["first_fetch"]:
            figures["first_fetch"] = time.time()
        figures["fetches"] += 1
        self.connection.parameters = request.parameters
        self._exchange.fetch(request.parameters, request.newer)

    def _push(self, request: Push) -> None:
        self._exchange.push(request.vector)
        self.unpushed.pushed()
