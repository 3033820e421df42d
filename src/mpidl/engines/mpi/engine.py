"""Carries out a replica's requests on real ranks; how it exchanges parameters is a part of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from mpidl.algorithms.algorithm import Replica
from mpidl.algorithms.requests import Clock, Gradient, NextBatch, WaitForEpoch
from mpidl.algorithms.steps import Steps
from mpidl.data.batch import Minibatch
from mpidl.data.dataset import Split
from mpidl.data.loader import Loader
from mpidl.data.schedule import Schedule
from mpidl.engines.mpi.exchange import Exchange
from mpidl.nn.model import Model
from mpidl.rma.status import Row, State
from mpidl.rma.transport import Fabric

#: Seconds between two posts of a worker's figures to the board.
POST_EVERY = 0.1


class Waiting:
    """Waits for what other ranks do, and counts the time in a worker's row."""

    def __init__(self, fabric: Fabric, row: Row) -> None:
        self._backoff, self._row = fabric.backoff(), row

    def until(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready()`."""
        if ready():
            return
        started = time.perf_counter()
        self._backoff.reset()
        while not ready():
            self._backoff.pause()
        self._row.figures["waiting_seconds"] += time.perf_counter() - started


class MpiEngine:
    """One replica's hands: its data, its model, and its way to the parameters.

    Parameters
    ----------
    fabric : Fabric
    worker : int
        This worker's number.
    model : Model
    split : Split
        The training data.
    schedule : Schedule
    exchange : Exchange
    take : callable
        Takes a ticket for a portion.
    on_epoch : callable
        Called with an epoch's number (from 1) by the one worker that first goes beyond it.
    between : callable
        Called between two batches.
    steps : Steps
        The replica's.
    delay : callable
        Of the seconds that a gradient took, how long to sleep then.
    """

    def __init__(
        self,
        fabric: Fabric,
        worker: int,
        model: Model,
        split: Split,
        schedule: Schedule,
        exchange: Exchange,
        take: Callable[[], int],
        on_epoch: Callable[[int], None],
        between: Callable[[], None],
        steps: Steps,
        delay: Callable[[float], float],
    ) -> None:
        self.model, self.split, self.schedule, self.exchange = model, split, schedule, exchange
        self._on_epoch, self._between, self.steps, self._delay = on_epoch, between, steps, delay
        self.loader = Loader(schedule, split, take, self._epoch_over, prepare=True)
        self.row: Row = exchange.row
        self._tickets = fabric.tickets()
        self._replica_clocks = fabric.clocks(worker)
        self._waiting = Waiting(fabric, self.row)
        # Where ranks share cores, the wall's clock also counts the others' work.
        self._timer = time.thread_time if fabric.crowded else time.perf_counter
        self._posted = 0.0
        self._actions: dict[type, Callable[[Any], Any]] = {
            Gradient: self._gradient,
            WaitForEpoch: self._wait_for_epoch,
            Clock: self._wait_for_clock,
            **exchange.actions,
        }

    def run(self, replica: Replica) -> None:
        """Carry out everything that a replica asks for, until all that it pushed has been applied."""
        answer = None
        self.row.figures["state"] = State.WORKING
        try:
            while True:
                started = self._timer()
                request = replica.send(answer)
                batch = self._next_batch(request) if isinstance(request, NextBatch) else None
                self.row.figures["overhead_seconds"] += self._timer() - started
                answer = batch if isinstance(request, NextBatch) else self._actions[type(request)](request)
        except StopIteration:
            pass
        self._waiting.until(self.exchange.applied)

    def announce_end(self) -> None:
        """Tell all others that this replica is done."""
        self.exchange.end_pushes()
        self._note_unfinished()
        self._replica_clocks.stop()
        self.row.figures["state"] = State.TRAINED
        self.row.post(ring=True)

    def _next_batch(self, request: NextBatch) -> Minibatch | None:
        self._between()
        now = time.perf_counter()
        if now - self._posted > POST_EVERY:
            self._posted = now
            self._note_unfinished()
            self.row.post()
            self.exchange.post()
        batch = self.loader.next()
        if batch is not None:
            assert self.loader.current is not None
            self.steps.portion = self.loader.current.portion
            self.exchange.took(self.loader.current.portion, self.loader.done - 1)
        return batch

    def _epoch_over(self, epoch: int) -> None:
        started = self._timer()
        self._on_epoch(epoch)
        self.row.figures["overhead_seconds"] -= self._timer() - started

    def _note_unfinished(self) -> None:
        self.row.figures["tickets"] = self.loader.tickets
        noted = self.row.figures["unfinished"]
        noted[:] = -1
        for i, pair in enumerate(self.loader.unfinished()):
            noted[i] = pair

    def _gradient(self, request: Gradient) -> np.ndarray:
        # What a gradient takes: its samples too, unless they were made ready before.
        started, since = self._timer(), time.perf_counter()
        batch = self.split.take(request.batch)
        if request.parameters is not self.model.parameters:
            np.copyto(self.model.parameters, request.parameters)
        loss, gradient = self.model.loss_and_gradient(batch)
        seconds = self._timer() - started
        pause = self._delay(time.perf_counter() - since)
        if pause > 0:
            time.sleep(pause)
            seconds += pause
        samples = len(request.batch.indices)
        figures = self.row.figures
        figures["computing_seconds"] += seconds
        figures["computing_squares"] += seconds * seconds
        figures["samples"] += samples
        figures["batches"] += 1
        figures["loss"] += float(loss) * samples
        self.exchange.computed(float(loss) * samples)
        return gradient

    def _wait_for_epoch(self, request: WaitForEpoch) -> None:
        taken = self.schedule.tickets_before(request.epoch)
        self._waiting.until(lambda: self._tickets.read() >= taken)

    def _wait_for_clock(self, request: Clock) -> None:
        self._waiting.until(self.exchange.applied)
        self._replica_clocks.advance()
        self._waiting.until(lambda: self._replica_clocks.slowest() >= self._replica_clocks.own - request.bound)
