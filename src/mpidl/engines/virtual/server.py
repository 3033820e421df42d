"""A server of the virtual cluster."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
import simpy

from mpidl.engines.virtual.processes import Process
from mpidl.shards.shard import Shard


class VirtualServer:
    """A shard and the queue of pushes in front of it.

    Parameters
    ----------
    environment : simpy.Environment
    shard : Shard

    Attributes
    ----------
    part : slice
        The shard's range in the whole vector.
    coming : dict of Any to tuple
        The arguments of `Shard.receive_push` for each push that is under way, in the order in which they were sent.
    last : dict of int to simpy.Process
        The last delivery of each replica: those of a replica don't overtake each other.
    busy_seconds : float
        Time that the server has worked so far.
    due : float
        When the shard's policy is to act on the time.
    """

    def __init__(self, environment: simpy.Environment, shard: Shard) -> None:
        self._environment = environment
        self.shard = shard
        self.part = slice(*shard.range)
        self.coming: dict[Any, tuple[int, int, np.ndarray, tuple[int, int]]] = {}
        self.last: dict[int, simpy.Process | None] = {}
        self.busy_seconds = 0.0
        self.due = math.inf
        self._serving = False
        self._queue: deque[simpy.Event] = deque()

    def turn(self) -> Process:
        """Wait until the server has applied every push that came earlier, and occupy it."""
        if self._serving:
            event = self._environment.event()
            self._queue.append(event)
            yield event
        self._serving = True

    def done(self) -> None:
        """Let the next push in the queue have its turn."""
        self._serving = False
        if self._queue:
            # A push that arrives at this very moment queues behind.
            self._serving = True
            self._queue.popleft().succeed()

    def settled(self) -> Shard:
        """Return the shard as it is when all pushes under way have arrived and all time has passed, maybe a copy."""
        if not self.coming and self.due == math.inf:
            return self.shard
        shard = self.shard.copy()
        for push in self.coming.values():
            shard.receive_push(*push)
        shard.look(math.inf)
        return shard
