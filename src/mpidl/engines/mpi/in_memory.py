"""Updates in place of one vector that all workers of a node map."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from mpidl.algorithms.requests import Update
from mpidl.engines.mpi.exchange import Exchange
from mpidl.rma.status import Desk, Row, State
from mpidl.rma.transport import Fabric
from mpidl.shards.shard import Shard
from mpidl.storage.shard_writer import ShardWriter

if TYPE_CHECKING:
    from mpidl.job.job import Job


class InMemory(Exchange):
    """A worker's access to the shared parameters.

    Parameters
    ----------
    fabric : Fabric
    worker : int
        This worker's number.
    job : Job
        Its model computes with the shared parameters themselves.
    shard : Shard
        The part of the shared vectors that this worker saves, and the staleness of its updates.
    writer : ShardWriter
        Writes the shard's checkpoints.
    shard_row : Row
        Where the shard's figures go.
    """

    def __init__(
        self, fabric: Fabric, worker: int, job: Job, shard: Shard, writer: ShardWriter, shard_row: Row
    ) -> None:
        self.row = fabric.row("workers", worker)
        self.actions = {Update: self._update}
        assert fabric.peers is not None
        assert fabric.shared is not None
        assert fabric.updates is not None
        self._peers, self._job, self._shard = fabric.peers, job, shard
        self._writer, self._shard_row = writer, shard_row
        self._parameters, *state = fabric.shared.vectors
        self._state = tuple(state)
        self._updates, self._worker = fabric.updates.vectors[0], worker
        self._window, self._coordinator = fabric.window, fabric.roles.coordinator
        self._desk = np.zeros(len(Desk), np.int64)
        self._read = self._portion = 0
        self._own = job.model.parameters
        job.model.parameters = self._parameters

    def start(self, parameters: np.ndarray) -> None:
        """See `Exchange.start`: nobody updates before the initial state has been saved."""
        self._obey()
        self._peers.Barrier()
        self.row.figures["first_fetch"] = time.time()

    def took(self, portion: int, batch: int) -> None:
        """See `Exchange.took`: what is read from now on holds the updates so far."""
        self._read, self._portion = int(self._updates.sum()), portion

    def fetch(self, parameters: np.ndarray) -> None:
        """See `Exchange.fetch`."""
        if parameters is not self._parameters:
            np.copyto(parameters, self._parameters)

    def post(self) -> None:
        """See `Exchange.post`."""
        self._obey()
        self._shard_row.post_shard(self._shard)

    def end_pushes(self) -> None:
        """See `Exchange.end_pushes`."""
        self._shard_row.post_shard(self._shard, State.TRAINED)

    def release_memory(self) -> None:
        """See `Exchange.release_memory`: the model gets its own vector back, with the trained values."""
        self._own[:] = self._parameters
        self._job.model.parameters = self._own

    def _obey(self) -> None:
        self._window.get(self._desk, self._coordinator, "desk")
        self._window.flush(self._coordinator)
        self._writer.obey(int(self._desk[Desk.ORDER]), int(self._desk[Desk.STEP]))

    def _update(self, request: Update) -> None:
        total = int(self._updates.sum())
        rule, rate = self._job.rule, self._job.rule.rate * self._job.rate_at(self._portion)
        rule.update(
            self._parameters, self._state, request.gradient, total + 1, rate,
            sparse=True, sparing=self._job.statistics,
        )  # fmt: skip
        self._updates[self._worker] += 1
        self._shard.staleness.add(max(0, total - self._read))
        self._shard.pushes += 1
        self._shard.clock = total + 1
        self.row.figures["pushes"] += 1
        self.row.figures["last_push"] = time.time()
