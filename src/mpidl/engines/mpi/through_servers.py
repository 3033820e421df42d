"""Fetch and push over MPI windows."""

from __future__ import annotations

import time

import numpy as np

from mpidl.algorithms.requests import Fetch, Push
from mpidl.engines.mpi.engine import Waiting
from mpidl.engines.mpi.exchange import Exchange
from mpidl.rma.transport import CLOCK, RECEIVED, Fabric


class ThroughServers(Exchange):
    """A worker's ways to the servers.

    Parameters
    ----------
    fabric : Fabric
    worker : int
        This worker's number.

    Attributes
    ----------
    fetched : array (servers, 2) of int64
        Clock of each shard, and chunks that it had received, at the last fetch.
    """

    def __init__(self, fabric: Fabric, worker: int) -> None:
        self.row = fabric.row("workers", worker)
        self.actions = {Fetch: self._fetch, Push: self._push}
        self._window, self._shards, self._servers = fabric.window, fabric.shards, fabric.roles.servers
        self._outboxes = fabric.outboxes(worker)
        self._waiting = Waiting(fabric, self.row)
        self._timer = time.thread_time if fabric.crowded else time.perf_counter
        self.fetched = np.full((len(self._servers), 2), -1, np.int64)
        self._spare: np.ndarray | None = None
        self._spare_fetched = self.fetched.copy()
        self._now = self.fetched.copy()
        self._portions: tuple[int, int] | None = None

    def took(self, portion: int, batch: int) -> None:
        """See `Exchange.took`."""
        super().took(portion, batch)
        self._portions = (portion if self._portions is None else self._portions[0], portion)

    def applied(self) -> bool:
        """See `Exchange.applied`."""
        return all(outbox.applied() for outbox in self._outboxes)

    def fetch(self, parameters: np.ndarray) -> None:
        """See `Exchange.fetch`."""
        self._waiting.until(self.applied)
        self._start_fetch(parameters, self._now)
        self._finish_fetch()

    def end_pushes(self) -> None:
        """See `Exchange.end_pushes`."""
        for outbox in self._outboxes:
            self._waiting.until(outbox.end)

    def _fetch(self, request: Fetch) -> None:
        self._bring(request)
        if self.record is not None:
            self.record.fetched(self.fetched[:, RECEIVED].tolist())

    def _bring(self, request: Fetch) -> None:
        figures = self.row.figures
        if not figures["first_fetch"]:
            figures["first_fetch"] = time.time()
        figures["fetches"] += 1
        figures["bytes_fetched"] += request.parameters.nbytes
        if not request.ahead:
            self._waiting.until(self.applied)
            if request.newer:
                self._waiting.until(self._all_newer)
            started = self._timer()
            self._start_fetch(request.parameters, self.fetched)
            self._finish_fetch()
            figures["fetching_seconds"] += self._timer() - started
            return
        if self._spare is None:
            self._spare = np.empty_like(request.parameters)
            self._start_fetch(self._spare, self._spare_fetched)
        self._finish_fetch()
        np.copyto(request.parameters, self._spare)
        self.fetched[:] = self._spare_fetched
        self._start_fetch(self._spare, self._spare_fetched)

    def _all_newer(self) -> bool:
        for number, rank in enumerate(self._servers):
            self._window.get(self._now[number], rank, "clock")
            self._window.flush(rank)
        return bool((self._now[:, CLOCK] > self.fetched[:, CLOCK]).all())

    def _start_fetch(self, parameters: np.ndarray, clocks: np.ndarray) -> None:
        # A clock read before the parameters never makes them look fresher than they are.
        for number, rank in enumerate(self._servers):
            self._window.get(clocks[number], rank, "clock")
            self._window.flush(rank)
        for rank, shard in zip(self._servers, self._shards, strict=True):
            self._window.get(parameters[shard.start : shard.stop], rank, "parameters")

    def _finish_fetch(self) -> None:
        for rank in self._servers:
            self._window.flush(rank)

    def _push(self, request: Push) -> None:
        portions, self._portions = self._portions or (-1, -1), None
        self._send(request.vector, self.fetched[:, CLOCK].tolist(), portions)

    def _send(self, vector: np.ndarray, clocks: list[int], portions: tuple[int, int]) -> None:
        """Put a vector on its way, with what goes into its headers: a clock for each server, and two numbers."""
        before = sum(outbox.bytes for outbox in self._outboxes)
        for outbox, fetched in zip(self._outboxes, clocks, strict=True):
            outbox.begin(fetched, portions)
        self._left = list(range(len(self._outboxes)))
        self._waiting.until(lambda: self._deliver(vector))
        figures = self.row.figures
        figures["pushes"] += 1
        figures["bytes_pushed"] += sum(outbox.bytes for outbox in self._outboxes) - before
        figures["last_push"] = time.time()

    def _deliver(self, vector: np.ndarray) -> bool:
        """Send what the servers have room for; return whether the push is delivered whole."""
        started = self._timer()
        sent = True
        while self._left and sent:
            sent = False
            for number in tuple(self._left):
                shard, outbox = self._shards[number], self._outboxes[number]
                before = outbox.sent
                if outbox.send(vector[shard.start : shard.stop]):
                    self._left.remove(number)
                sent = sent or outbox.sent > before
        self.row.figures["pushing_seconds"] += self._timer() - started
        return not self._left
