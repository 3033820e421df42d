"""Reductions by MPI: each worker holds a shard, sums its part of all vectors, and gives the result to all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mpidl.algorithms.requests import Reduce, Speed
from mpidl.engines import monotonic
from mpidl.engines.mpi.group import Waiting
from mpidl.engines.mpi.request_handler import Contribution, ReducedCheckpoint, Reducing
from mpidl.engines.mpi.shard_collectives import ShardCollectives
from mpidl.parameters.ranges import Range
from mpidl.rma.worker import WorkerLink
from mpidl.shards.shard import Shard, Snapshot
from mpidl.shards.state import PARAMETERS
from mpidl.storage.position import ReplicaPosition
from mpidl.transport.protocol import Meeting

#: Parts of the fastest replica's speed that ranks of a replica share as integers.
SPEEDS = 1 << 30


class ReductionCheckpoint(ReducedCheckpoint):
    """The shard as the last reduction left it."""

    def __init__(self, shard: Shard, number: int) -> None:
        super().__init__()
        self._shard, self._number, self._snapshot = shard, number, Snapshot(shard)

    def cut(self, order: int, number: int, position: ReplicaPosition) -> Contribution:
        self._snapshot.begin(())
        return Contribution({number: position}, {self._number: (self._shard.range, self._snapshot.copy.on_host())})


class ByReduction(Reducing):
    """A worker's part in the reductions.

    A reduction is an all-to-all of parts, a sum in the workers' order, an update of this worker's shard and an
    all-gather: the bytes of an all-reduce, bitwise the same sum for any timing, and the rule's state is held once.

    `shards` are those of the workers with the same slice of the vector, counted from its beginning; `shard`, this
    worker's, is number `number` of all. `evaluated` is the name of the shards' vector that `evaluate` gets.
    """

    def __init__(
        self,
        shard: Shard,
        shards: Sequence[Range],
        evaluate: Callable[[int, np.ndarray], None],
        number: int = 0,
        evaluated: str = PARAMETERS,
    ) -> None:
        self._evaluated = evaluated
        self._orders = ReductionCheckpoint(shard, number)
        super().__init__((shard,), self._orders, evaluate)
        self.shard = shard
        self.actions = {Reduce: self._reduce, Speed: self._speed}
        self._shards = shards
        self._received = np.empty((len(shards), shard.range.size), shard.parameters.dtype)
        self._says = np.zeros(len(Meeting), np.int64)
        self._all = np.zeros((len(shards), len(Meeting)), np.int64)
        self._latest = shard.parameters
        self._computed = 0.0, 0

    def bind(self, link: WorkerLink) -> None:
        super().bind(link)
        self._peers, self._waiting = link.peers, Waiting(link, self.status, 0.0)
        self._collectives = ShardCollectives(link.peers, self._shards, self.shard.parameters.dtype)

    def unbind(self) -> None:
        self._collectives.free()

    def start(self, parameters: np.ndarray) -> None:
        """Gather all shards into `parameters`; the initial state is saved before the first reduction."""
        self._gather(parameters)
        self._agree(False)
        self.status.figures["first_fetch"] = monotonic.now()

    def fetch(self, parameters: np.ndarray) -> None:
        """Copy the result of the last reduction or, on all workers at once, gather the average."""
        if self._evaluated != PARAMETERS:
            self._collectives.gather(self.shard.vectors[self._evaluated], parameters)
        elif parameters is not self._latest:
            np.copyto(parameters, self._latest)

    def end_pushes(self) -> None:
        self.shard.apply_rest()
        super().end_pushes()

    def _reduce(self, request: Reduce) -> int:
        given = self._agree(request.vector is not None, request.weight)
        if not given.any():
            return 0
        self._update(request, given)
        self._gather(request.parameters)
        if request.vector is not None:
            self.unpushed.pushed()
        self._count(int(request.vector is not None), request.parameters.nbytes)
        epoch = int(self._all[:, Meeting.EPOCH].max())
        if epoch:
            self.epoch_over = 0
            shown = request.parameters
            if self._evaluated != PARAMETERS:
                self.fetch(shown := np.empty_like(request.parameters))
            self._evaluate(epoch, shown)
        return int(given.sum())

    def _agree(self, gives: bool, weight: float = 0.0) -> np.ndarray:
        """Exchange weights of vectors, finished epochs and orders among all workers; return which give a vector."""
        self._says[:] = gives, self.epoch_over, 0, 0, self.unpushed.batch, 0, 0
        self._says.view(np.float64)[[Meeting.WEIGHT, Meeting.SECONDS]] = weight, self._mean_seconds()
        if self._peers.rank == 0:
            self._says[[Meeting.ORDER, Meeting.LAST]] = self.lead.share(self._link.orders.read)[:2]
        self._waiting.until(self._peers.Iallgather(self._says, self._all).Test)
        self._orders.reduced(self._all[0])
        return self._all[:, Meeting.GIVES].astype(bool)

    def _mean_seconds(self) -> float:
        """Return the mean duration of this worker's gradients since the last call, 0 if there were none."""
        figures = self.status.figures
        before, self._computed = self._computed, (float(figures["computing_seconds"]), int(figures["batches"]))
        (seconds, batches), (seconds_before, batches_before) = self._computed, before
        return (seconds - seconds_before) / (batches - batches_before) if batches > batches_before else 0.0

    def _speed(self, request: Speed) -> float:
        """Return the speed of the replica's first rank over that of the fastest; see `Speed`."""

        def parts() -> list[int]:
            seconds = self._all.view(np.float64)[:, Meeting.SECONDS]
            own = seconds[self._peers.rank]
            return [int(SPEEDS * seconds[seconds > 0].min() / own) if own > 0 else SPEEDS]

        (found,) = self.lead.share(parts)
        return found / SPEEDS

    def _update(self, request: Reduce, given: np.ndarray) -> None:
        """Sum this shard's part of all vectors, and update the shard."""
        with self.status.wait:
            self._collectives.scatter(request.vector, given, self._received)
        batch = int(self._all[:, Meeting.BATCH].max())
        weights = self._all.view(np.float64)[given, Meeting.WEIGHT].tolist() if request.mean else None
        self.shard.receive_sum(self._received[: int(given.sum())], weights, (batch, batch))

    def _gather(self, parameters: np.ndarray) -> None:
        """Gather all shards into a vector."""
        with self.status.wait:
            self._collectives.gather(self.shard.parameters, parameters)
        self._latest = parameters
