"""Servers and processes of the virtual cluster."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator
from typing import Any, NamedTuple

import numpy as np
import simpy

from mpidl.shards.shard import Shard

#: A process of SimPy, which yields the events that it waits for.
Process = Generator[simpy.Event, Any, Any]


class Signal:
    """A recurring event; processes wait for `next`, its next announcement."""

    def __init__(self, environment: simpy.Environment) -> None:
        self._environment = environment
        self.next = environment.event()

    def announce(self, value: Any = None) -> None:
        """Resume all processes that wait for `next`, with `value`."""
        if self.next.callbacks:
            event, self.next = self.next, self._environment.event()
            event.succeed(value)


class Load(NamedTuple):
    """What a push has for a server beside its vector.

    Attributes
    ----------
    values : Any
        For `mpidl.shards.side_state.SideState.receive`.
    nbytes : int
    seconds : float
        Time of the server's work on it.
    """

    values: Any
    nbytes: float
    seconds: float


class ArrivingPush(NamedTuple):
    """A push that arrives at a server: the arguments of `Shard.receive_push`, and its values for `Shard.side_state`."""

    worker: int
    fetched: int
    values: np.ndarray
    batches: tuple[int, int]
    side_data: Any = None

    def receive(self, shard: Shard) -> None:
        """Let a shard handle the push."""
        if self.side_data is not None:
            assert shard.side_state is not None
            shard.side_state.receive(self.worker, self.side_data)
        shard.receive_push(self.worker, self.fetched, self.values, self.batches)


class VirtualServer:
    """A shard and the queue of pushes to it.

    Attributes
    ----------
    part : slice
        The shard's range in the whole vector.
    coming : dict of Any to Arrival
        The pushes under way, in the order of sending.
    last : dict of int to simpy.Process
        The last delivery of each replica; a replica's deliveries don't overtake each other.
    busy_seconds : float
        Time that the server has worked so far.
    due : float
        Time of the next call of `Shard.pass_time`.
    """

    def __init__(self, environment: simpy.Environment, shard: Shard) -> None:
        self._environment = environment
        self.shard = shard
        self.part = slice(*shard.range)
        self.coming: dict[Any, ArrivingPush] = {}
        self.last: dict[int, simpy.Process | None] = {}
        self.busy_seconds = 0.0
        self.due = math.inf
        self._serving = False
        self._queue: deque[simpy.Event] = deque()

    def turn(self) -> Process:
        """Wait until the server has applied every earlier push, and occupy it."""
        if self._serving:
            event = self._environment.event()
            self._queue.append(event)
            yield event
        self._serving = True

    def rest(self, seconds: float) -> Process:
        """Apply nothing for a time, before any push that waits."""
        if self._serving:
            event = self._environment.event()
            self._queue.appendleft(event)
            yield event
        self._serving = True
        yield self._environment.timeout(seconds)
        self.done()

    def done(self) -> None:
        """Give the next push in the queue its turn."""
        self._serving = False
        if self._queue:
            # A push that arrives at this very moment queues behind it.
            self._serving = True
            self._queue.popleft().succeed()

    @property
    def waiting(self) -> int:
        """Number of the pushes that wait for their turn."""
        return len(self._queue)

    def settled(self) -> Shard:
        """Return the shard, or a copy, with all pushes under way applied and all waiting ended."""
        if not self.coming and self.due == math.inf:
            return self.shard
        shard = self.shard.copy()
        for push in self.coming.values():
            push.receive(shard)
        shard.pass_time(math.inf)
        return shard
