"""Updates in place of one vector that all workers of a node map."""

from __future__ import annotations

import time

import numpy as np

from mpidl.algorithms.requests import Update
from mpidl.engines.mpi.own_shard import OwnShard
from mpidl.nn.model import Model
from mpidl.parameters.ranges import Range
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard
from mpidl.shards.state import ShardState
from mpidl.storage.shard_writer import ShardWriter
from mpidl.transport.interface import WorkerLink


class InMemory(OwnShard):
    """A worker's access to the shared parameters.

    Parameters
    ----------
    number : int
        The worker's number.
    model : Model
        Computes with the shared parameters themselves, while bound.
    shard : Shard
        The part of the shared vectors that this worker saves, and the staleness of its updates.
    writer : ShardWriter
        Writes the shard's checkpoints.
    rule : ScheduledRule
        Updates the shared vectors.
    """

    def __init__(self, number: int, model: Model, shard: Shard, writer: ShardWriter, rule: ScheduledRule) -> None:
        super().__init__(shard, writer)
        self.actions = {Update: self._update}
        self._number, self._model, self._rule = number, model, rule
        self._own, self._count = model.parameters, 0
        self._read = self._portion = 0

    def bind(self, link: WorkerLink) -> None:
        """See `RequestHandler.bind`: this worker's part of the vectors moves into the shared memory."""
        super().bind(link)
        *vectors, self._updates = link.shared_vectors
        shared = dict(zip(self._shard.vectors, vectors, strict=True))
        self._shard.bind({name: vector[slice(*self._shard.range)] for name, vector in shared.items()})
        self._updates[self._number] = self._count
        parameters, *states = shared.values()
        whole = Range(0, parameters.size)
        state = dict(zip(list(shared)[1:], states, strict=True))
        self._whole = ShardState(whole, parameters, self._rule, parameters.size, state=state)
        self._model.parameters = parameters

    def unbind(self) -> None:
        """See `RequestHandler.unbind`: the model gets its own vector back, with the trained values."""
        self._own[:] = self._whole.parameters
        self._model.parameters = self._own
        self._count = int(self._updates[self._number])
        self._shard.unbind()
        del self._whole, self._updates

    def start(self, parameters: np.ndarray) -> None:
        """See `RequestHandler.start`: nobody updates before the initial state has been saved."""
        self._obey()
        self._link.peers.Barrier()
        self.status.figures["first_fetch"] = time.time()

    def took(self, portion: int, batch: int) -> None:
        """See `RequestHandler.took`: what is read from now on holds the updates so far."""
        self._read, self._portion = int(self._updates.sum()), portion

    def fetch(self, parameters: np.ndarray) -> None:
        """See `RequestHandler.fetch`."""
        if parameters is not self._whole.parameters:
            np.copyto(parameters, self._whole.parameters)

    def post(self) -> None:
        """See `RequestHandler.post`."""
        self._obey()
        super().post()

    def _obey(self) -> None:
        order = self._link.order()
        self.obey(order.number, order.step)

    def _update(self, request: Update) -> None:
        total, shard = int(self._updates.sum()), self._shard
        self._whole.update_sparsely(request.gradient, total + 1, self._portion)
        self._updates[self._number] += 1
        shard.staleness.add(max(0, total - self._read))
        shard.pushes += 1
        shard.clock = total + 1
        self.status.figures["pushes"] += 1
        self.status.figures["last_push"] = time.time()
