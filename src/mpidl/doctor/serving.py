"""Probes of a real server with one worker, on two ranks: its cost when idle, and its response time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from mpi4py import MPI

from mpidl.doctor.examination import Finding, Verdict
from mpidl.doctor.windows import ORIGIN, TARGET, Pair
from mpidl.parameters.ranges import Range
from mpidl.rma.backoff import POLLING_SLEEP
from mpidl.rma.doorbells import Doorbells
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

#: Acceptable share of a core, and seconds to an answer, of an idle server.
CHEAP, PROMPT = 0.05, 0.3e-3
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
        if way == "messages":
            self._transport = Transport(comm, roles, capacity, way=way)
        else:
            self._transport = Transport(comm, roles, capacity, way)
        if comm.rank == ORIGIN:
            self._link, self._coordinator = self._transport.worker(0), self._transport.coordinator()
            self._backoff, self._clocks = self._link.backoff(), np.zeros((1, len(ShardClock)), np.int64)
        else:
            rule = Adagrad()
            rule.warm(np.float32)
            chunk = self._transport.chunks[0]
            shard = Shard(range, np.zeros(size, np.float32), ScheduledRule(rule), policy or ApplyAtOnce(), chunk)
            self._server = Server(0, {0: shard}, Path(), lambda order: Path(), workers=1)
            self._server.bind(self._transport)
        self._transport.quiesce()

    def serve(self) -> float:
        """On the server: serve until the worker is done; return the share of a core used."""
        self._transport.quiesce()
        started, worked = time.perf_counter(), time.process_time()
        self._server.run()
        share = (time.process_time() - worked) / (time.perf_counter() - started)
        self._transport.quiesce()
        return share

    def work(self, action: Callable[[], None]) -> None:
        """On the worker: call `action` while the server serves, then stop it."""
        self._coordinator.orders.set_phase(Phase.TRAIN)
        self._transport.quiesce()
        action()
        self._coordinator.orders.set_phase(Phase.EXIT)
        self._transport.quiesce()

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


def idle_share(served: ServerAndWorker, pair: Pair, span: float = 0.5) -> float:
    """Return the share of a core used by an idle server, on both ranks."""
    if pair.origin:
        served.work(lambda: served.idle(span))
        share = 0.0
    else:
        share = served.serve()
    agreed: float = pair.comm.bcast(share, root=TARGET)
    return agreed


def answers(served: ServerAndWorker, pair: Pair, gradient: np.ndarray, rounds: int = 50) -> list[float]:
    """Return the seconds from each push until the worker sees it applied, on both ranks."""
    times: list[float] = []

    def ask() -> None:
        for _ in range(rounds):
            served.idle(PAUSE)
            served.push(gradient)
            start = time.perf_counter()
            served.wait_applied()
            times.append(time.perf_counter() - start)

    if pair.origin:
        served.work(ask)
    else:
        served.serve()
    times = pair.comm.bcast(times, root=ORIGIN)
    return times


def doorbells(pair: Pair, rounds: int = 20, patience: float = 0.5) -> Finding:
    """Test whether the ranks of one node can wake each other."""
    bells = Doorbells(pair.comm)
    if not pair.one_node:
        bells.free()
        return Finding(f"none between nodes: servers poll every {1e3 * POLLING_SLEEP:g} ms")
    times = []
    for _ in range(rounds):
        if pair.origin:
            # The target needs time to fall asleep.
            time.sleep(1e-3)
            start = time.perf_counter()
            bells.ring(TARGET)
            bells.sleep(patience)
            times.append(time.perf_counter() - start)
        else:
            bells.sleep(patience)
            bells.ring(ORIGIN)
        bells.clear()
    bells.free()
    times = pair.comm.bcast(times, root=ORIGIN)
    if max(times) >= patience:
        return Finding("a sleeping rank was not woken", Verdict.FAILED, "servers will answer slowly")
    return Finding(f"a rank wakes another one and is woken in {1e6 * median(times):.0f} us")


def idle_server(pair: Pair, way: str) -> Finding:
    """Measure the cost of an idle server, and its response time."""
    with ServerAndWorker(pair.comm, 1000, way=way) as served:
        share = idle_share(served, pair)
        times = answers(served, pair, np.zeros(1000, np.float32))
    found = f"{100 * share:.1f} % of a core; answers in {1e3 * median(times):.3f} ms"
    if pair.one_node and (share > CHEAP or median(times) > PROMPT):
        remedy = f"below {100 * CHEAP:.0f} % and {1e3 * PROMPT:g} ms is usual on one node with a core for each rank"
        return Finding(found, Verdict.WARNING, remedy)
    return Finding(found)
