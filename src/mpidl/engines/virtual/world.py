"""What the parts of the virtual engine share: servers, replicas, spare vectors and the totals."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import simpy

from mpidl.data.loader import Loader
from mpidl.data.schedule import Assignment
from mpidl.engines.totals import Totals
from mpidl.engines.virtual.cluster import Cluster
from mpidl.shards.shard import Shard
from mpidl.wire import ErrorFeedback, Wire

Process = Generator[simpy.Event, Any, Any]


class Server:
    """A shard, and the queue before it."""

    def __init__(self, environment: simpy.Environment, shard: Shard) -> None:
        self._environment = environment
        self.shard = shard
        self.part = slice(*shard.range)
        self.busy_seconds = 0.0
        self._serving = False
        self._queue: deque[simpy.Event] = deque()

    def turn(self) -> Process:
        """Wait until no push that came before is being applied."""
        if self._serving:
            event = self._environment.event()
            self._queue.append(event)
            yield event
        self._serving = True

    def done(self) -> None:
        """Let the next push come."""
        self._serving = False
        if self._queue:
            # Who comes at the same moment queues behind.
            self._serving = True
            self._queue.popleft().succeed()


class Replica:
    """What belongs to one replica."""

    def __init__(self, number: int, parameters: np.ndarray, loader: Loader) -> None:
        self.number, self.parameters, self.loader = number, parameters, loader
        self.active = True
        self.process: simpy.Process
        self.fetched: list[int] = []
        self.gradient: np.ndarray | None = None
        self.spare: np.ndarray | None = None
        self.fetching: simpy.Event | None = None
        self.unapplied: list[simpy.Process] = []
        self.clock: float = 0
        self.loss = 0.0
        self.feedback: list[ErrorFeedback] = []
        self.unpushed: list[Assignment] = []

    def next_batch(self) -> Any:
        """Return the next batch, and note that its gradient is yet to be pushed."""
        batch = self.loader.next()
        current = self.loader.current
        if batch is not None and current is not None:
            self.unpushed.append(Assignment(current.portion, self.loader.done - 1, self.loader.done))
        return batch

    def pushed(self) -> tuple[int, int]:
        """Note a push; return the first and the last portion that it was computed on."""
        portions = (self.unpushed[0].portion, self.unpushed[-1].portion) if self.unpushed else (-1, -1)
        self.unpushed.clear()
        return portions

    def taken(self) -> list[Assignment]:
        """Return what it has taken and not pushed: batches of which it has or has not computed the gradient."""
        current, ahead = self.loader.current, self.loader.ahead
        rest = [] if current is None else [Assignment(current.portion, self.loader.done, current.last)]
        return [part for part in [*self.unpushed, *rest, *([ahead] if ahead else [])] if part.first < part.last]

    def encode(self, wire: Wire, servers: list[Server], vector: np.ndarray, decoded: np.ndarray) -> int:
        """Send a vector through a wire format: `decoded` is what arrives; return its bytes."""
        if not self.feedback:
            self.feedback = [ErrorFeedback(wire, server.shard.range.size, vector.dtype) for server in servers]
        return sum(
            feedback.round_trip(vector[server.part], server.shard.pieces[0].size, decoded[server.part])
            for server, feedback in zip(servers, self.feedback, strict=True)
        )


class Spares:
    """Vectors like the parameters that nobody uses at the moment."""

    def __init__(self, like: np.ndarray) -> None:
        self._like = like
        self._free: list[np.ndarray] = []

    def take(self) -> np.ndarray:
        """Return one, its values undefined."""
        return self._free.pop() if self._free else np.empty_like(self._like)

    def give(self, vector: np.ndarray) -> None:
        """Give one back."""
        self._free.append(vector)


class World:
    """The state of one virtual cluster.

    Parameters
    ----------
    environment : simpy.Environment
    cluster : Cluster or None
        How long things take; None: no time.
    servers : list of Server
    like : array
        A vector of the parameters' shape and dtype.
    clock : callable
        Returns the time in seconds for the totals.
    """

    def __init__(
        self,
        environment: simpy.Environment,
        cluster: Cluster | None,
        servers: list[Server],
        like: np.ndarray,
        clock: Callable[[], float],
    ) -> None:
        self.environment, self.cluster, self.servers, self.clock = environment, cluster, servers, clock
        self.replicas: list[Replica] = []
        self.spares = Spares(like)
        self.totals = Totals(0.0)

    def collect(self, vector: np.ndarray) -> None:
        """Copy what the shards hold into a vector."""
        for server in self.servers:
            vector[server.part] = server.shard.parameters

    def begin(self) -> None:
        """Note that training has begun."""
        self.totals.first_fetch = self.totals.first_fetch or self.clock()


class Signal:
    """Something that processes wait for, again and again."""

    def __init__(self, environment: simpy.Environment) -> None:
        self._environment = environment
        self.next = environment.event()

    def announce(self, value: Any = None) -> None:
        """Let all that wait for `next` go on."""
        if self.next.callbacks:
            event, self.next = self.next, self._environment.event()
            event.succeed(value)
