"""Fetch and push by way of the servers: one after the other, or overlapping each other and the computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from mpidl.algorithms.algorithm import Pattern
from mpidl.algorithms.requests import Fetch, Push
from mpidl.engines import monotonic
from mpidl.engines.mpi.connection import Connection, Encodings
from mpidl.engines.mpi.request_handler import CheckpointSource, RequestHandler, SideChannel
from mpidl.nn.capabilities import GivenUp, GradientObserver, report_final
from mpidl.nn.model import PlacedModel
from mpidl.parameters.ranges import Range
from mpidl.rma.worker import WorkerLink
from mpidl.storage.position import ReplicaPosition
from mpidl.transport.protocol import Order, ShardClock
from mpidl.transport.status import WorkerStatus


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
        report_final(model, take)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let the model report nothing meanwhile."""
        self.end()
        yield
        report_final(self._model, self._take)

    def end(self) -> None:
        """Let the model report nothing any more."""
        report_final(self._model, None)


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


class ServersCheckpoint(CheckpointSource):
    """Marks orders behind pushes, and keeps the state of encodings.

    If `in_rounds`, servers apply pushes in rounds, as in a deterministic run: orders are then obeyed after a number of
    pushes that the coordinator decides.
    """

    def __init__(
        self, connection: Connection, encodings: Encodings, status: WorkerStatus, in_rounds: bool, beside: SideChannel
    ) -> None:
        super().__init__()
        self.together, self._beside = in_rounds, beside
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
        return {**self._encodings.vectors(), **self._beside.vectors()}

    def load(self, position: ReplicaPosition, vectors: Mapping[str, np.ndarray]) -> None:
        # No push has arrived in part, so that all clocks are those of any shard.
        clocks = [clocks[ShardClock.CLOCK] for clocks in position.fetched]
        self._connection.fetched[:, ShardClock.CLOCK] = max(clocks, default=-1)
        self._encodings.load(vectors)
        self._beside.load(vectors)


NOT_ENCODED = Encodings()


class ThroughServers(RequestHandler):
    """Carries out the requests of a worker that exchanges through servers.

    `shards` make up the worker's slice of the vector, counted from its beginning. `pattern` is that of the replica's
    requests. `model` computes the gradients, which may leave while it does so; without it, each push must be whole when
    it begins. `in_rounds` says whether servers apply pushes in rounds, as in a deterministic run. `beside` is what is
    exchanged beside vectors.
    """

    def __init__(
        self,
        shards: Sequence[Range],
        encodings: Encodings = NOT_ENCODED,
        *,
        pattern: Pattern | None = None,
        model: PlacedModel | None = None,
        in_rounds: bool = False,
        beside: SideChannel | None = None,
    ) -> None:
        super().__init__()
        self._beside = beside = SideChannel() if beside is None else beside
        self.actions = {Fetch: self._fetch, Push: self._push}
        self._pattern, self._model = pattern or Pattern(), model
        self._reports: Reports | None = None
        self.connection = Connection(
            shards, self.status, self.unpushed, encodings.copies, lambda order: self.checkpoint.cut_seen(order),
            beside,
        )  # fmt: skip
        self.checkpoint = ServersCheckpoint(self.connection, encodings, self.status, in_rounds, beside)

    def bind(self, link: WorkerLink) -> None:
        """Choose the order of steps that the link and the replica's requests allow."""
        super().bind(link)
        self.connection.bind(link)
        pattern = self._pattern
        # Rounds are the same wherever ranks are.
        behind = pattern.fetches_next and not self.checkpoint.together and link.fetches.can_follow
        if pattern.prefetches:
            self._exchange: InOrder = (PrefetchingBehindPush if behind else Prefetching)(self.connection)
        else:
            self._exchange = (BehindPush if behind else InOrder)(self.connection, zero_copy=pattern.fetches_next)
        # What is beside a push leaves before it, and is complete after the gradient.
        if pattern.pushes_gradients and self._model is not None and not link.asked:
            self._reports = WaitFreePush(self.connection, self._model)
        # The ranks of a cut replica compute a gradient together.
        if pattern.gives_up and self._model is not None and self.lead.partitions == 1:
            self._reports = LateGradients(self._model, self.late)

    def unbind(self) -> None:
        """Let a fetch that has begun arrive before, unless it is encoded."""
        self._link.fetches.finish()
        if self._reports is not None:
            self._reports.end()

    def applied(self) -> bool:
        return self._link.pushes.applied()

    def late(self) -> bool:
        return self._link.fetches.all_newer(self.connection.fetched)

    def fetch(self, parameters: np.ndarray) -> None:
        self.connection.finish_behind_push()
        self.connection.wait(self.applied)
        self._link.fetches.read_present(parameters)

    def aside(self) -> AbstractContextManager[None]:
        return nullcontext() if self._reports is None else self._reports.paused()

    def end_pushes(self) -> None:
        self._beside.push()
        self.connection.wait(self._link.pushes.end)

    def _fetch(self, request: Fetch) -> None:
        figures = self.status.figures
        if not figures["first_fetch"]:
            figures["first_fetch"] = monotonic.now()
        figures["fetches"] += 1
        self.connection.parameters = request.parameters
        self._exchange.fetch(request.parameters, request.newer)

    def _push(self, request: Push) -> None:
        self._exchange.push(request.vector)
        self.unpushed.pushed()
