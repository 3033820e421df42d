"""Carries out a replica's requests on real ranks, over MPI windows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from mpidl.algorithms.algorithm import Replica
from mpidl.algorithms.requests import Clock, Fetch, Gradient, NextBatch, Push, WaitForEpoch
from mpidl.data.dataset import Split
from mpidl.data.loader import Loader
from mpidl.data.schedule import Schedule
from mpidl.nn.model import Model
from mpidl.rma.board import Row, State
from mpidl.rma.fabric import Fabric

#: Seconds between two posts of a worker's figures to the board.
POST_EVERY = 0.1


class MpiEngine:
    """One replica's hands: its data, its model, and its ways to the servers.

    Parameters
    ----------
    fabric : Fabric
    worker : int
        This worker's number.
    model : Model
    split : Split
        The training data.
    schedule : Schedule
    on_epoch : callable
        Called with an epoch's number (from 1) by the one worker that first goes beyond it.
    take : callable
        Takes a ticket for a portion.
    """

    def __init__(
        self,
        fabric: Fabric,
        worker: int,
        model: Model,
        split: Split,
        schedule: Schedule,
        take: Callable[[], int],
        on_epoch: Callable[[int], None],
    ) -> None:
        self.model, self.split, self.schedule = model, split, schedule
        self.loader = Loader(schedule, split, take, on_epoch)
        self.row: Row = fabric.row("workers", worker)
        self._window, self._shards, self._servers = fabric.window, fabric.shards, fabric.roles.servers
        self._outboxes = fabric.outboxes(worker)
        self._tickets = fabric.tickets()
        self._replica_clocks = fabric.clocks(worker)
        self._backoff = fabric.backoff()
        self._clocks = [np.zeros(1, np.int64) for _ in self._servers]
        self._spare: np.ndarray | None = None
        self._spare_clocks = [0 for _ in self._servers]
        self._fetched = [0 for _ in self._servers]
        self._posted = 0.0
        self._actions: dict[type, Callable[[Any], Any]] = {
            NextBatch: self._next_batch,
            Fetch: self._fetch,
            Gradient: self._gradient,
            Push: self._push,
            WaitForEpoch: self._wait_for_epoch,
            Clock: self._wait_for_clock,
        }

    def run(self, replica: Replica) -> None:
        """Carry out everything that a replica asks for, until the servers have applied all that it pushed."""
        answer = None
        self.row.figures["state"] = State.WORKING
        try:
            while True:
                request = replica.send(answer)
                answer = self._actions[type(request)](request)
        except StopIteration:
            pass
        self._wait(self._applied)

    def finish(self) -> None:
        """Tell the servers that no push follows, and the coordinator that this replica is done."""
        for outbox in self._outboxes:
            self._wait(outbox.end)
        self._note_unfinished()
        self._replica_clocks.stop()
        self.row.figures["state"] = State.TRAINED
        self.row.post(ring=True)

    def fetch(self, parameters: np.ndarray, clocks: list[int] | None = None) -> None:
        """Bring the servers' parameters, with all of this worker's own pushes, into a vector.

        Parameters
        ----------
        parameters : array, shape (size,)
        clocks : list of int, optional
            Receives the clock of each shard.
        """
        self._wait(self._applied)
        self._start_fetch(parameters, clocks if clocks is not None else [0] * len(self._servers))
        self._finish_fetch()

    def _wait(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready()`, and count the time."""
        if ready():
            return
        started = time.perf_counter()
        self._backoff.reset()
        while not ready():
            self._backoff.pause()
        self.row.figures["waiting_seconds"] += time.perf_counter() - started

    def _next_batch(self, request: NextBatch) -> np.ndarray | None:
        now = time.perf_counter()
        if now - self._posted > POST_EVERY:
            self._posted = now
            self._note_unfinished()
            self.row.post()
        return self.loader.next()

    def _note_unfinished(self) -> None:
        self.row.figures["tickets"] = self.loader.tickets
        noted = self.row.figures["unfinished"]
        noted[:] = -1
        for i, pair in enumerate(self.loader.unfinished()):
            noted[i] = pair

    def _fetch(self, request: Fetch) -> None:
        figures = self.row.figures
        if not figures["first_fetch"]:
            figures["first_fetch"] = time.time()
        figures["fetches"] += 1
        figures["bytes_fetched"] += request.parameters.nbytes
        if not request.ahead:
            self.fetch(request.parameters, self._fetched)
            return
        if self._spare is None:
            self._spare = np.empty_like(request.parameters)
            self._start_fetch(self._spare, self._spare_clocks)
        self._finish_fetch()
        np.copyto(request.parameters, self._spare)
        self._fetched[:] = self._spare_clocks
        self._start_fetch(self._spare, self._spare_clocks)

    def _start_fetch(self, parameters: np.ndarray, clocks: list[int]) -> None:
        # A clock read before the parameters never makes them look fresher than they are.
        for number, rank in enumerate(self._servers):
            self._window.get(self._clocks[number], rank, "clock")
            self._window.flush(rank)
            clocks[number] = int(self._clocks[number][0])
        for rank, shard in zip(self._servers, self._shards, strict=True):
            self._window.get(parameters[shard.start : shard.stop], rank, "parameters")

    def _finish_fetch(self) -> None:
        for rank in self._servers:
            self._window.flush(rank)

    def _gradient(self, request: Gradient) -> np.ndarray:
        batch = self.split.gather(request.batch)
        if request.parameters is not self.model.parameters:
            np.copyto(self.model.parameters, request.parameters)
        loss, gradient = self.model.loss_and_gradient(batch)
        samples = len(request.batch)
        figures = self.row.figures
        figures["samples"] += samples
        figures["batches"] += 1
        figures["loss"] += float(loss) * samples
        return gradient

    def _push(self, request: Push) -> None:
        vector = request.vector
        for outbox in self._outboxes:
            outbox.begin()
        waiting = list(range(len(self._outboxes)))
        self._wait(lambda: self._deliver(vector, waiting))
        figures = self.row.figures
        figures["pushes"] += 1
        figures["bytes_pushed"] += vector.nbytes
        figures["last_push"] = time.time()

    def _deliver(self, vector: np.ndarray, waiting: list[int]) -> bool:
        """Send what the servers have room for; return whether the push is delivered whole."""
        sent = -1
        while waiting and sent != 0:
            sent = 0
            for number in tuple(waiting):
                shard, outbox = self._shards[number], self._outboxes[number]
                before = outbox.sent
                if outbox.send(vector[shard.start : shard.stop], self._fetched[number]):
                    waiting.remove(number)
                sent += outbox.sent - before
        return not waiting

    def _wait_for_epoch(self, request: WaitForEpoch) -> None:
        taken = self.schedule.tickets_before(request.epoch)
        self._wait(lambda: self._tickets.read() >= taken)

    def _wait_for_clock(self, request: Clock) -> None:
        self._wait(self._applied)
        self._replica_clocks.advance()
        self._wait(lambda: self._replica_clocks.slowest() >= self._replica_clocks.own - request.bound)

    def _applied(self) -> bool:
        return all(outbox.applied() for outbox in self._outboxes)
