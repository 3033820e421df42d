"""Updates in place of one vector that all workers of a node map, and checkpoints of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from mpidl.algorithms.requests import UpdateShared
from mpidl.data.sampling import ENDLESS, OwnPosition
from mpidl.engines import monotonic
from mpidl.engines.mpi.request_handler import CheckpointSource, Contribution, OwnShards
from mpidl.nn.model import Model
from mpidl.parameters.ranges import Range
from mpidl.rma.worker import WorkerLink
from mpidl.shards.shard import Shard
from mpidl.shards.state import PARAMETERS, ShardState
from mpidl.storage.position import ReplicaPosition
from mpidl.transport.protocol import Row

#: Seconds that a worker waits, with the gate closed, for others to end their changes before it opens the gate.
PATIENCE = 5e-3
#: Seconds between two attempts.
RETRY_EVERY = 0.1
#: Numbers of a row before the places.
NUMBERS = len(Row)


class Gate(CheckpointSource):
    """Changes to the shared parameters, and the copies of all of them that checkpoints get.

    Each worker shows its position in a row of the shared memory; the row changes with the parameters.

    `number` is the worker's. `shard` has its part of the first values, and the staleness of its updates. `whole`, all
    parameters, is set by the exchange when it is bound.
    """

    whole: ShardState

    def __init__(self, number: int, shard: Shard) -> None:
        super().__init__()
        self.changing = self
        self._number, self._shard = number, shard
        self._row: np.ndarray | None = None
        self._copies: dict[str, np.ndarray] = {}
        self._tried = 0.0

    def bind(self, link: WorkerLink) -> None:
        super().bind(link)
        self._gate, self._rows = link.shared.rows[0], link.shared.rows[1:]
        if self._row is not None:
            self._rows[self._number] = self._row
        self._before = self._shard.clock

    def unbind(self) -> None:
        """Let go of the shared memory, which is about to be freed."""
        self._row = self._rows[self._number].copy()
        del self._rows, self._gate, self.whole

    @property
    def clock(self) -> int:
        """Number of updates of all workers."""
        return self._before + int(self._rows[:, Row.UPDATES].sum())

    def count_update(self) -> None:
        """Count an update by this worker."""
        self._rows[self._number, Row.UPDATES] += 1

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
        """Show this worker's position, and that it changes nothing."""
        row, position = self._rows[self._number], self.where()
        row[Row.BATCHES], row[Row.SAMPLES] = position.batches, position.samples
        own = [] if position.own is None else [*position.own.unused, (position.own.next, ENDLESS)]
        row[Row.PLACES], row[Row.OWN], row[Row.TICKETS] = len(position.working), len(own), position.tickets
        numbers = [number for place in (*position.working, *own) for number in place]
        row[NUMBERS : NUMBERS + len(numbers)] = numbers
        self._link.shared.sync()
        row[Row.CHANGING] = 0

    def cut(self, order: int, number: int, position: ReplicaPosition) -> Contribution | None:
        """Return, on the first worker that obeys, a copy of the parameters with the positions of all workers."""
        if not self._link.shared.take_order(order):
            return Contribution({})
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

    def _copy(self) -> Contribution:
        """Return all parameters and positions, which no worker changes."""
        taken = self._link.tickets.taken()
        for name, vector in self.whole.saved_vectors().items():
            if name not in self._copies:
                self._copies[name] = np.empty_like(vector)
            np.copyto(self._copies[name], vector)
        counters: Mapping[str, Any] = self._shard.state() | {"clock": np.array(self.clock)}
        replicas = {}
        for number, row in enumerate(self._rows.tolist()):
            places, end = list(zip(row[NUMBERS::2], row[NUMBERS + 1 :: 2], strict=True)), row[Row.PLACES]
            working, own = places[:end], places[end : end + row[Row.OWN]]
            replicas[number] = ReplicaPosition(
                batches=row[Row.BATCHES], samples=row[Row.SAMPLES], working=working, tickets=row[Row.TICKETS],
                own=OwnPosition(own[-1][0], own[:-1]) if own else None,
            )  # fmt: skip
        return Contribution(replicas, {0: (self.whole.range, {**counters, **self._copies})}, taken)


class InMemory(OwnShards):
    """A worker's access to the shared parameters.

    `number` is the worker's. The model computes with the shared parameters themselves, while bound. `shard` has the
    worker's part of the first values, and the staleness of its updates.
    """

    def __init__(self, number: int, model: Model, shard: Shard) -> None:
        self._gate = Gate(number, shard)
        super().__init__((shard,), self._gate)
        self.shard = shard
        self.actions = {UpdateShared: self._update}
        self._model, self._own = model, model.parameters
        self._read = 0

    def bind(self, link: WorkerLink) -> None:
        """Move this worker's part of the vectors into the shared memory, too."""
        super().bind(link)
        shared = dict(zip(self.shard.vectors, link.shared.vectors, strict=True))
        self.shard.bind({name: vector[slice(*self.shard.range)] for name, vector in shared.items()})
        parameters = shared.pop(PARAMETERS)
        whole = Range(0, parameters.size)
        self._whole = ShardState(whole, parameters, self.shard.scheduled_rule, parameters.size, state=shared)
        self._gate.whole, self._model.parameters = self._whole, parameters

    def unbind(self) -> None:
        """Give the model its own vector back, with the trained values."""
        self._own[:] = self._whole.parameters
        self._model.parameters = self._own
        self.shard.unbind()
        self._gate.unbind()
        del self._whole

    def start(self, parameters: np.ndarray) -> None:
        """Wait for all workers: none updates before all have begun."""
        with self._gate:
            pass
        self._link.peers.Barrier()
        self.status.figures["first_fetch"] = monotonic.now()

    def took(self, portion: int, batch: int) -> None:
        """Note the number of updates in the parameters that are read from now on."""
        super().took(portion, batch)
        self._read = self._gate.clock

    def fetch(self, parameters: np.ndarray) -> None:
        if parameters is not self._whole.parameters:
            np.copyto(parameters, self._whole.parameters)

    def _update(self, request: UpdateShared) -> None:
        total, shard = self._gate.clock, self.shard
        staleness, shard.batch = max(0, total - self._read), self.unpushed.batch
        with self._gate:
            self._whole.update_sparsely(request.gradient, total + 1, shard.batch, staleness)
            self._gate.count_update()
            self.unpushed.pushed()
        shard.staleness.add(staleness)
        shard.pushes += 1
        shard.clock = total + 1
        self.status.figures["pushes"] += 1
        self.status.figures["last_push"] = monotonic.now()
