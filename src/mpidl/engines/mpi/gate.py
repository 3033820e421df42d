"""A gate to memory that all workers of a node change, which closes while one of them copies it for a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from mpidl.engines.mpi.checkpoint_source import CheckpointSource, Part
from mpidl.rma.worker import WorkerLink
from mpidl.shards.shard import Shard
from mpidl.shards.state import ShardState
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

    Parameters
    ----------
    number : int
        The worker's number.
    shard : Shard
        This worker's part of the first values, and the staleness of its updates.

    Attributes
    ----------
    whole : ShardState
        All parameters; set by the exchange when it is bound.
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
        row[Row.PLACES], row[Row.TICKETS] = len(position.working), position.tickets
        row[NUMBERS : NUMBERS + 2 * len(position.working)] = [number for place in position.working for number in place]
        self._link.shared.sync()
        row[Row.CHANGING] = 0

    def cut(self, order: int, number: int, position: ReplicaPosition) -> Part | None:
        """Return, on the first worker that obeys, a copy of the parameters with the positions of all workers."""
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
        """Return all parameters and positions, which no worker changes."""
        taken = self._link.tickets.taken()
        for name, vector in self.whole.saved_vectors().items():
            if name not in self._copies:
                self._copies[name] = np.empty_like(vector)
            np.copyto(self._copies[name], vector)
        counters: Mapping[str, Any] = self._shard.state() | {"clock": np.array(self.clock)}
        replicas = {}
        for number, row in enumerate(self._rows.tolist()):
            end = NUMBERS + 2 * row[Row.PLACES]
            working = list(zip(row[NUMBERS:end:2], row[NUMBERS + 1 : end : 2], strict=True))
            replicas[number] = ReplicaPosition(
                batches=row[Row.BATCHES], samples=row[Row.SAMPLES], working=working, tickets=row[Row.TICKETS]
            )
        return Part(replicas, {0: (self.whole.range, {**counters, **self._copies})}, taken)
