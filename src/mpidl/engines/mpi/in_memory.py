"""Updates in place of one vector that all workers of a node map."""

from __future__ import annotations

import time

import numpy as np

from mpidl.algorithms.requests import Update
from mpidl.engines.mpi.gate import Gate
from mpidl.engines.mpi.own_shard import OwnShard
from mpidl.nn.model import Model
from mpidl.parameters.ranges import Range
from mpidl.rma.worker import WorkerLink
from mpidl.shards.shard import Shard
from mpidl.shards.state import ShardState


class InMemory(OwnShard):
    """A worker's access to the shared parameters.

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
        self._gate = Gate(number, shard)
        super().__init__(shard, self._gate)
        self.actions = {Update: self._update}
        self._model, self._own = model, model.parameters
        self._read = 0

    def bind(self, link: WorkerLink) -> None:
        """Move this worker's part of the vectors into the shared memory, too."""
        super().bind(link)
        shared = dict(zip(self.shard.vectors, link.shared.vectors, strict=True))
        self.shard.bind({name: vector[slice(*self.shard.range)] for name, vector in shared.items()})
        parameters, *states = shared.values()
        whole = Range(0, parameters.size)
        state = dict(zip(list(shared)[1:], states, strict=True))
        self._whole = ShardState(whole, parameters, self.shard.scheduled_rule, parameters.size, state=state)
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
        self.status.figures["first_fetch"] = time.time()

    def took(self, portion: int, batch: int) -> None:
        """Note the number of updates in the parameters that are read from now on."""
        super().took(portion, batch)
        self._read = self._gate.clock

    def fetch(self, parameters: np.ndarray) -> None:
        if parameters is not self._whole.parameters:
            np.copyto(parameters, self._whole.parameters)

    def _update(self, request: Update) -> None:
        total, shard = self._gate.clock, self.shard
        staleness = max(0, total - self._read)
        with self._gate:
            self._whole.update_sparsely(request.gradient, total + 1, self.unpushed.portion, staleness)
            self._gate.count_update()
            self.unpushed.pushed()
        shard.staleness.add(staleness)
        shard.pushes += 1
        shard.clock = total + 1
        self.status.figures["pushes"] += 1
        self.status.figures["last_push"] = time.time()
