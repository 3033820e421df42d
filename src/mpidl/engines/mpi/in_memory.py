"""Updates in place of one vector that all workers of a node map."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from mpidl.algorithms.requests import Update
from mpidl.engines.mpi.own_shard import OwnShard
from mpidl.engines.mpi.request_handler import Part
from mpidl.nn.model import Model
from mpidl.parameters.ranges import Range
from mpidl.rma.worker import WorkerLink
from mpidl.shards.shard import Shard
from mpidl.shards.state import ShardState
from mpidl.storage.position import ReplicaPosition
from mpidl.transport.protocol import Row

#: Seconds that a worker waits, with the gate closed, for others to end what they are changing, before it opens it.
PATIENCE = 5e-3
#: Seconds between two attempts.
RETRY_EVERY = 0.1
#: Numbers of a row before the places.
NUMBERS = len(Row)


class InMemory(OwnShard):
    """A worker's access to the shared parameters.

    A checkpoint is a copy of all of them, which one worker takes while a gate keeps the others from changing anything.
    Each worker shows in a row of the shared memory where it is; the row changes with the parameters.

    Parameters
    ----------
    number : int
        The worker's number.
    model : Model
        Computes with the shared parameters themselves, while bound.
    shard : Shard
        This worker's part of the first values, and the staleness of its updates.
    """

    def __init__(self, number: int, model: Model, shard: Shard) -> None:
        super().__init__(shard)
        self.actions = {Update: self._update}
        self.changing = self
        self._number, self._model = number, model
        self._own = model.parameters
        self._row: np.ndarray | None = None
        self._copies: dict[str, np.ndarray] = {}
        self._read, self._tried = 0, 0.0

    def bind(self, link: WorkerLink) -> None:
        """See `RequestHandler.bind`: this worker's part of the vectors moves into the shared memory."""
        super().bind(link)
        self._gate, self._rows = link.shared.rows[0], link.shared.rows[1:]
        shared = dict(zip(self.shard.vectors, link.shared.vectors, strict=True))
        self.shard.bind({name: vector[slice(*self.shard.range)] for name, vector in shared.items()})
        if self._row is not None:
            self._rows[self._number] = self._row
        parameters, *states = shared.values()
        whole = Range(0, parameters.size)
        state = dict(zip(list(shared)[1:], states, strict=True))
        self._whole = ShardState(whole, parameters, self.shard.scheduled_rule, parameters.size, state=state)
        self._before = self.shard.clock
        self._model.parameters = parameters

    def unbind(self) -> None:
        """See `RequestHandler.unbind`: the model gets its own vector back, with the trained values."""
        self._own[:] = self._whole.parameters
        self._model.parameters = self._own
        self._row = self._rows[self._number].copy()
        self.shard.unbind()
        del self._whole, self._rows, self._gate

    def start(self, parameters: np.ndarray) -> None:
        """See `RequestHandler.start`: nobody updates before all have begun."""
        with self.changing:
            pass
        self._link.peers.Barrier()
        self.status.figures["first_fetch"] = time.time()

    # The gate.

    def __enter__(self) -> None:
        """Begin to change the parameters or this worker's row, once the gate is open."""
        row = self._rows[self._number]
        while True:
            row[Row.CHANGING] = 1
            self._link.shared.sync()
            if not self._gate[0]:
                return
            row[Row.CHANGING] = 0
            while self._gate[0]:
                time.sleep(1e-4)

    def __exit__(self, *error: object) -> None:
        """Show where this worker is now, and that it changes nothing."""
        row, position = self._rows[self._number], self.where()
        row[Row.BATCHES], row[Row.SAMPLES] = position.batches, position.samples
        row[Row.PLACES], row[Row.TICKETS] = len(position.working), position.tickets
        row[NUMBERS : NUMBERS + 2 * len(position.working)] = [number for place in position.working for number in place]
        self._link.shared.sync()
        row[Row.CHANGING] = 0

    def cut(self, order: int, number: int, position: ReplicaPosition) -> Part | None:
        """See `RequestHandler.cut`: the first worker that obeys takes the copy, with the positions of all."""
        if not self._link.shared.take_order(order):
            return Part({})
        now = time.perf_counter()
        if now - self._tried < RETRY_EVERY:
            return None
        self._tried = now
        self._gate[0] = 1
        self._link.shared.sync()
        try:
            while self._rows[:, Row.CHANGING].any():
                if time.perf_counter() - now > PATIENCE:
                    return None
            return self._copy()
        finally:
            self._gate[0] = 0

    def _copy(self) -> Part:
        """Return all parameters and positions; nobody changes them."""
        taken = self._link.tickets.taken()
        for name, vector in self._whole.saved_vectors().items():
            if name not in self._copies:
                self._copies[name] = np.empty_like(vector)
            np.copyto(self._copies[name], vector)
        counters: Mapping[str, Any] = self.shard.state() | {"clock": np.array(self._clock)}
        replicas = {}
        for number, row in enumerate(self._rows.tolist()):
            end = NUMBERS + 2 * row[Row.PLACES]
            working = list(zip(row[NUMBERS:end:2], row[NUMBERS + 1 : end : 2], strict=True))
            replicas[number] = ReplicaPosition(
                batches=row[Row.BATCHES], samples=row[Row.SAMPLES], working=working, tickets=row[Row.TICKETS]
            )
        return Part(replicas, {0: (self._whole.range, {**counters, **self._copies})}, taken)

    # Updates.

    @property
    def _clock(self) -> int:
        return self._before + int(self._rows[:, Row.UPDATES].sum())

    def took(self, portion: int, batch: int) -> None:
        """See `RequestHandler.took`: what is read from now on holds the updates so far."""
        super().took(portion, batch)
        self._read = self._clock

    def fetch(self, parameters: np.ndarray) -> None:
        if parameters is not self._whole.parameters:
            np.copyto(parameters, self._whole.parameters)

    def _update(self, request: Update) -> None:
        total, shard = self._clock, self.shard
        staleness = max(0, total - self._read)
        with self.changing:
            self._whole.update_sparsely(request.gradient, total + 1, self.unpushed.portion, staleness)
            self._rows[self._number, Row.UPDATES] += 1
            self.unpushed.pushed()
        shard.staleness.add(staleness)
        shard.pushes += 1
        shard.clock = total + 1
        self.status.figures["pushes"] += 1
        self.status.figures["last_push"] = time.time()
