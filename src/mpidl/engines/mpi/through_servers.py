"""Fetch and push by way of the servers: one after the other, or overlapping each other and the computation."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from mpidl.algorithms.algorithm import Pattern
from mpidl.algorithms.requests import Fetch, Push
from mpidl.engines import monotonic
from mpidl.engines.mpi.connection import Connection
from mpidl.engines.mpi.request_handler import CheckpointSource, RequestHandler, SideChannel
from mpidl.engines.progress import Encodings
from mpidl.errors import MpidlError
from mpidl.nn.model import GivenUp, GradientObserver, PlacedModel
from mpidl.parameters.ranges import Range
from mpidl.rma.worker import WorkerLink
from mpidl.storage.position import ReplicaPosition
from mpidl.transport.protocol import Order, ShardClock
from mpidl.transport.status import WorkerStatus

#: Least seconds between two looks at the shards' clocks within a gradient.
LOOK_EVERY = 1e-3


class InOrder:
    """A fetch begins when the servers have applied the worker's pushes, and ends when it has arrived.

    If `zero_copy`, a vector that is pushed stays as it is until the next fetch.
    """

    def __init__(self, connection: Connection, zero_copy: bool = False) -> None:
        self._connection, self._zero_copy = connection, zero_copy
        self._clocks = connection.clocks()

    def fetch(self, parameters: Any, newer: bool, parts: Sequence[Range] = ()) -> None:
        """Carry out a `Fetch`."""
        connection, link = self._connection, self._connection.link
        behind = connection.finish_behind_push()
        connection.wait(link.pushes.applied)
        if newer:
            connection.wait(lambda: link.fetches.all_newer(connection.fetched))
        without = connection.outside(parts)
        connection.start_fetch(parameters, self._clocks, [*behind, *without])
        connection.finish_fetch(parameters, self._clocks, without)
        connection.count_behind_push(parameters, behind)

    def push(self, vector: Any, parts: Sequence[Range] = ()) -> None:
        """Carry out a `Push`."""
        self._connection.begin_push(vector, self._zero_copy, parts)
        self._connection.deliver(vector)


class BehindPush(InOrder):
    """A fetch begins behind the push before it, from the servers that can answer it, and chunk by chunk."""

    def push(self, vector: Any, parts: Sequence[Range] = ()) -> None:
        super().push(vector, parts)
        if not parts:
            self._connection.start_behind_push(self._connection.parameters, self._clocks)


class Prefetching(InOrder):
    """A fetch copies the values that the one before began to fetch, and begins the next one."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._prefetched: Any = None

    def fetch(self, parameters: Any, newer: bool, parts: Sequence[Range] = ()) -> None:
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
    """A fetch begins right behind a push, before which the worker takes the prefetched values."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._taken = False

    def fetch(self, parameters: Any, newer: bool, parts: Sequence[Range] = ()) -> None:
        if self._taken:
            self._taken = False
            return
        super().fetch(parameters, newer)

    def push(self, vector: Any, parts: Sequence[Range] = ()) -> None:
        connection = self._connection
        connection.begin_push(vector, zero_copy=False, parts=parts)
        # Values that have arrived behind the previous push show, too, that there is room for this one.
        self._take(connection.parameters)
        self._taken = True
        connection.deliver(vector)
        behind = connection.start_behind_push(self._prefetched, self._clocks)
        connection.start_fetch(self._prefetched, self._clocks, behind)


class ServersCheckpoint(CheckpointSource):
    """Marks orders behind pushes, and keeps the state of encodings.

    If `in_rounds`, servers apply pushes in rounds, as in a deterministic run: orders are then obeyed after a number of
    pushes that the coordinator decides.
    """

    def __init__(
        self, connection: Connection, encodings: Encodings, status: WorkerStatus, in_rounds: bool, channel: SideChannel
    ) -> None:
        super().__init__()
        self.together, self._channel = in_rounds, channel
        self._connection, self._encodings, self._status = connection, encodings, status

    def order(self, told: Order, marked: int) -> Order:
        if not self.together:
            return told
        pushes = int(self._status.figures["pushes"])
        self._connection.wait(lambda: self._begin_round(pushes + 1))
        order, decided = self._round
        assert decided is not None
        # A loop of the user's own may have pushed several times since it was here.
        return order if order.number == marked or pushes >= decided else order._replace(number=marked)

    def _begin_round(self, pushes: int) -> bool:
        self._round = self._link.orders.begin_round(pushes)
        return self._round[1] is not None

    def mark(self, order: int) -> bool:
        return self._link.pushes.mark(order)

    def last_fetched(self) -> list[list[int]]:
        fetched: list[list[int]] = self._connection.fetched.tolist()
        return fetched

    def vectors(self) -> dict[str, np.ndarray]:
        return {**self._encodings.vectors(), **self._channel.vectors()}

    def load(self, position: ReplicaPosition, vectors: Mapping[str, np.ndarray]) -> None:
        # No push has arrived in part, so that all clocks are those of any shard.
        clocks = [clocks[ShardClock.CLOCK] for clocks in position.fetched]
        self._connection.fetched[:, ShardClock.CLOCK] = max(clocks, default=-1)
        self._encodings.load(vectors)
        self._channel.load(vectors)


NOT_ENCODED = Encodings()


class ThroughServers(RequestHandler):
    """Carries out the requests of a worker that exchanges through servers.

    `shards` make up the worker's slice of the vector, counted from its beginning. `pattern` is that of the replica's
    requests. `model` computes the gradients, which may leave while it does so; without it, each push must be whole when
    it begins. `in_rounds` says whether servers apply pushes in rounds, as in a deterministic run. `channel` is what is
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
        channel: SideChannel | None = None,
    ) -> None:
        super().__init__()
        self._looked = 0.0
        self._channel = channel = SideChannel() if channel is None else channel
        self.actions = {Fetch: self._fetch, Push: self._push}
        self._pattern, self._model = pattern or Pattern(), model
        self._observer: GradientObserver | None = None
        self.connection = Connection(
            shards, self.status, self.unpushed, encodings.copies, lambda order: self.checkpoint.cut_seen(order),
            channel,
        )  # fmt: skip
        self.checkpoint = ServersCheckpoint(self.connection, encodings, self.status, in_rounds, channel)

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
        self._observer = None
        # What is beside a push leaves before it, and is complete after the gradient.
        if pattern.pushes_gradients and self._model is not None and not link.asked:
            self._observer = self._send_final
        # The ranks of a cut replica compute a gradient together.
        if pattern.gives_up and self._model is not None and self.lead.partitions == 1:
            self._observer = self._give_up_late
        self._observe(self._observer)

    def unbind(self) -> None:
        """Let a fetch that has begun arrive before, unless it is encoded."""
        self._link.fetches.finish()
        self._observe(None)

    def applied(self) -> bool:
        return self._link.pushes.applied()

    def late(self) -> bool:
        by = self.late_by
        return by is not None and self._link.fetches.all_behind(self.connection.fetched, by)

    def fetch(self, parameters: np.ndarray) -> None:
        self.connection.finish_behind_push()
        self.connection.wait(self.applied)
        self._link.fetches.read_present(parameters)

    @contextmanager
    def aside(self) -> Iterator[None]:
        self._observe(None)
        yield
        self._observe(self._observer)

    def end_pushes(self) -> None:
        self._channel.push()
        self.connection.wait(self._link.pushes.end)

    def _fetch(self, request: Fetch) -> None:
        figures = self.status.figures
        if not figures["first_fetch"]:
            figures["first_fetch"] = monotonic.now()
        figures["fetches"] += 1
        self.connection.parameters = request.parameters
        self._exchange.fetch(request.parameters, request.newer, request.parts)

    def _push(self, request: Push) -> None:
        if request.parts and not self._link.direct:
            raise MpidlError("a step of one part of the model needs workers that push to the servers themselves")
        self._exchange.push(request.vector, request.parts)
        self.unpushed.pushed()

    def _send_final(self, gradient: Any, start: int) -> None:
        """Send what the model reports as final of a gradient while it computes the rest (wait-free)."""
        self.connection.begin_push(gradient, zero_copy=True)
        self.connection.send(gradient, start)

    def _give_up_late(self, gradient: Any, start: int) -> None:
        """Give a late gradient up when the model reports a part of it; look every `LOOK_EVERY` seconds."""
        if (now := time.perf_counter()) - self._looked < LOOK_EVERY:
            return
        self._looked = now
        if self.late():
            raise GivenUp("late")

    def _observe(self, observer: GradientObserver | None) -> None:
        if self._model is not None and self._observer is not None:
            self._model.report_final(observer)
