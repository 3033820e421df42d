"""A real server with one worker, on two ranks: its cost when idle, and its response time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from mpi4py import MPI

from mpidl.doctor.windows import MESSAGES, ORIGIN, TARGET, Pair
from mpidl.parameters.ranges import Range
from mpidl.rma.ownership import Owner
from mpidl.rma.transport import Transport
from mpidl.roles.server import Server
from mpidl.rules import Adagrad
from mpidl.shards.policies import ApplyAtOnce, Policy
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import CHUNK_BYTES, Shard
from mpidl.topology.roles import Roles
from mpidl.transport.capacity import Capacity
from mpidl.transport.protocol import Phase, ShardClock

#: Seconds between two pushes to an idle server, long enough for it to fall asleep.
PAUSE = 4e-3


class ServerAndWorker(Owner):
    """A server and its only worker, with the transport of a run; creation and `free` are collective.

    The worker, which is the coordinator too, is the first of two ranks. There are `size` parameters of float32. By
    default the server applies pushes by Adagrad. `way` is as for `mpidl.rma.probes.WindowProbe`.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        size: int,
        policy: Policy | None = None,
        way: str = "allocate",
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        roles = Roles((TARGET,), ((ORIGIN,),), coordinator=ORIGIN)
        range = Range(0, size)
        capacity = Capacity([range], np.dtype(np.float32), chunk_bytes=chunk_bytes)
        self._comm, of_windows = comm, way != MESSAGES
        self._transport = Transport(
            comm, roles, capacity, way if of_windows else None, way="windows" if of_windows else MESSAGES
        )
        if comm.rank == ORIGIN:
            self._link, self._coordinator = self._transport.worker(0), self._transport.coordinator()
            self._backoff, self._clocks = self._link.backoff(), np.zeros((1, len(ShardClock)), np.int64)
        else:
            rule = Adagrad()
            rule.warm(np.float32)
            chunk = self._transport.geometries[0].chunk
            shard = Shard(range, np.zeros(size, np.float32), ScheduledRule(rule), policy or ApplyAtOnce(), chunk)
            self._server = Server(0, {0: shard}, Path(), lambda order: Path(), workers=1)
            self._server.bind(self._transport)
        self._transport.quiesce()

    def run(self, action: Callable[[], None]) -> float:
        """Call `action` on the worker while the server serves; return the share of a core that it used; collective."""
        share = 0.0
        if self._comm.rank == ORIGIN:
            self._coordinator.orders.set_phase(Phase.TRAIN)
            self._transport.quiesce()
            action()
            self._coordinator.orders.set_phase(Phase.EXIT)
        else:
            self._transport.quiesce()
            started, worked = time.perf_counter(), time.process_time()
            self._server.run()
            share = (time.process_time() - worked) / (time.perf_counter() - started)
        self._transport.quiesce()
        agreed: float = self._comm.bcast(share, root=TARGET)
        return agreed

    def idle(self, seconds: float) -> None:
        """On the worker: wait as a coordinator does, calling MPI now and then so that others reach its window."""
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            self._backoff.pause()

    def fetch(self, parameters: np.ndarray) -> None:
        """On the worker: fetch the parameters, as the engine does."""
        self._link.fetches.start(parameters, self._clocks)
        self._link.fetches.finish()

    def push(self, gradient: np.ndarray) -> None:
        """On the worker: send a push, as the engine does; the gradient must not change until it is applied."""
        self._link.pushes.begin(self._clocks[:, ShardClock.CLOCK].tolist(), (-1, -1), zero_copy=True)
        self._wait(lambda: self._link.pushes.send(gradient))

    def wait_applied(self) -> None:
        """On the worker: wait until the server has applied everything pushed."""
        self._wait(self._link.pushes.applied)

    def _wait(self, ready: Callable[[], bool]) -> None:
        if not ready():
            self._backoff.until(ready)

    def free(self) -> None:
        """Free the transport; collective."""
        self._transport.free()


def idle_share(served: ServerAndWorker, span: float = 0.5) -> float:
    """Return the share of a core used by an idle server, on both ranks."""
    return served.run(lambda: served.idle(span))


def answers(served: ServerAndWorker, pair: Pair, gradient: np.ndarray, rounds: int = 50) -> list[float]:
    """Return the seconds from each push until the worker sees it applied, on both ranks."""
    taken: list[float] = []

    def ask() -> None:
        for _ in range(rounds):
            served.idle(PAUSE)
            served.push(gradient)
            start = time.perf_counter()
            served.wait_applied()
            taken.append(time.perf_counter() - start)

    served.run(ask)
    found: list[float] = pair.comm.bcast(taken, root=ORIGIN)
    return found
