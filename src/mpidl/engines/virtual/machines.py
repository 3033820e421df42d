"""The machines of a virtual cluster: draw durations and let virtual time pass."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import simpy

from mpidl.engines.virtual.cores import Cores
from mpidl.engines.virtual.times import Times


class Machines:
    """The machines on which virtual replicas and servers run.

    Parameters
    ----------
    environment : simpy.Environment
    times : Times
        The durations.
    seed : int
        Decides every duration that is drawn.
    replicas, servers : int
        Number of replicas and of servers.
    """

    def __init__(self, environment: simpy.Environment, times: Times, seed: int, replicas: int, servers: int) -> None:
        self._environment, self._times = environment, times
        streams = np.random.default_rng(seed).spawn(replicas + servers)
        self._replicas, self._servers = streams[:replicas], streams[replicas:]
        self._cores = Cores(environment, times.cores) if times.cores is not None else None

    @property
    def shares_cores(self) -> bool:
        """Whether all replicas and servers share a number of cores."""
        return self._cores is not None

    def compute(self, replica: int) -> simpy.Event:
        """Return an event that occurs when a replica has computed a gradient."""
        seconds = self._times.compute(self._replicas[replica]) * self._times.slow.get(replica, 1.0)
        return self._work(seconds)

    def serve(self, server: int) -> simpy.Event:
        """Return an event that occurs when a server has applied a push."""
        return self._work(self._times.service(self._servers[server]), urgent=True)

    def send(self, replica: int, size: float) -> Generator[simpy.Event, Any, None]:
        """Let a message of `size` bytes pass between a replica and a server."""
        latency = self._times.latency(self._replicas[replica])
        transfer = size / self._times.bandwidth
        if self._cores is None:
            yield self._environment.timeout(latency + transfer)
            return
        # Ranks that share the cores of a node use them to copy.
        if latency:
            yield self._environment.timeout(latency)
        if transfer:
            yield self._cores.work(transfer)

    def all_reduce(self, replicas: int, size: float) -> Generator[simpy.Event, Any, None]:
        """Let the replicas reduce vectors of `size` bytes; each sends and receives all parts but its own, twice."""
        for _ in range(2):
            slowest = max(self._times.latency(random) for random in self._replicas[:replicas])
            transfer = (replicas - 1) / replicas * size / self._times.bandwidth
            if self._cores is None:
                yield self._environment.timeout(slowest + transfer)
            else:
                yield self._environment.timeout(slowest)
                yield self._environment.all_of([self._cores.work(transfer) for _ in range(replicas)])

    def _work(self, seconds: float, urgent: bool = False) -> simpy.Event:
        if self._cores is None:
            return self._environment.timeout(seconds)
        return self._cores.work(seconds, urgent)
