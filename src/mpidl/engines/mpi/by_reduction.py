"""Reductions by MPI: each worker holds a shard, sums its part of all vectors, and gives the result to all."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from mpidl.algorithms.requests import Reduce
from mpidl.engines.mpi.exchange import Exchange
from mpidl.rma.status import Desk, Row, State
from mpidl.rma.transport import Fabric
from mpidl.shards.shard import Shard
from mpidl.storage.shard_writer import ShardWriter

#: What a worker says before a reduction.
GIVES, EPOCH, ORDER, STEP, PORTION = range(5)


class ByReduction(Exchange):
    """A worker's part in the reductions.

    A reduction is an all-to-all of parts, a sum in the workers' order, an update of this worker's shard and an
    all-gather: the bytes of an all-reduce, bitwise the same sum for any timing, and the rule's state is held once.

    Parameters
    ----------
    fabric : Fabric
    worker : int
        This worker's number.
    shard : Shard
        What this worker holds.
    writer : ShardWriter
        Writes the shard's checkpoints.
    shard_row : Row
        Where the shard's figures go.
    evaluate : callable
        Evaluates parameters after an epoch; called on all workers as (epoch, parameters).
    """

    def __init__(
        self,
        fabric: Fabric,
        worker: int,
        shard: Shard,
        writer: ShardWriter,
        shard_row: Row,
        evaluate: Callable[[int, np.ndarray], None],
    ) -> None:
        self.row = fabric.row("workers", worker)
        self.actions = {Reduce: self._reduce}
        assert fabric.peers is not None
        self._peers, self._shard, self._evaluate = fabric.peers, shard, evaluate
        self._writer, self._shard_row = writer, shard_row
        self._window, self._coordinator = fabric.window, fabric.roles.coordinator
        self._sizes = [part.size for part in fabric.shards]
        self._starts = [part.start for part in fabric.shards]
        workers = len(self._sizes)
        self._received = np.empty((workers, shard.range.size), shard.parameters.dtype)
        self._says = np.zeros(5, np.int64)
        self._all = np.zeros((workers, 5), np.int64)
        self._desk = np.zeros(len(Desk), np.int64)
        self._type = MPI.Datatype.fromcode(shard.parameters.dtype.char)
        self._latest = shard.parameters
        self._portion = -1
        self.epoch_over = 0

    def took(self, portion: int, batch: int) -> None:
        """See `Exchange.took`."""
        super().took(portion, batch)
        self._portion = portion

    def start(self, parameters: np.ndarray) -> None:
        """See `Exchange.start`."""
        self._gather(parameters)

    def fetch(self, parameters: np.ndarray) -> None:
        """See `Exchange.fetch`: the last reduction's result."""
        if parameters is not self._latest:
            np.copyto(parameters, self._latest)

    def post(self) -> None:
        """See `Exchange.post`."""
        self._shard_row.post_shard(self._shard)

    def end_pushes(self) -> None:
        """See `Exchange.end_pushes`."""
        self._shard.apply_rest()
        self._shard_row.post_shard(self._shard, State.TRAINED)

    def _reduce(self, request: Reduce) -> int:
        figures = self.row.figures
        if not figures["first_fetch"]:
            figures["first_fetch"] = time.time()
        given = self._agree(request.vector is not None)
        if not given.any():
            return 0
        self._exchange(request, given)
        self._gather(request.parameters)
        figures["pushes"] += request.vector is not None
        figures["bytes_pushed"] += request.parameters.nbytes if request.vector is not None else 0
        figures["fetches"] += 1
        figures["bytes_fetched"] += request.parameters.nbytes
        figures["last_push"] = time.time()
        epoch = int(self._all[:, EPOCH].max())
        if epoch:
            self.epoch_over = 0
            self._evaluate(epoch, request.parameters)
        return int(given.sum())

    def _agree(self, gives: bool) -> np.ndarray:
        """Tell all who gives a vector, what epoch is over and what is to be saved; return who gives."""
        self._says[:] = gives, self.epoch_over, 0, 0, self._portion
        if self._peers.rank == 0:
            self._window.get(self._desk, self._coordinator, "desk")
            self._window.flush(self._coordinator)
            self._says[[ORDER, STEP]] = self._desk[[Desk.ORDER, Desk.STEP]]
        started = time.perf_counter()
        self._peers.Allgather(self._says, self._all)
        self.row.figures["waiting_seconds"] += time.perf_counter() - started
        self._writer.obey(int(self._all[0, ORDER]), int(self._all[0, STEP]))
        return self._all[:, GIVES].astype(bool)

    def _exchange(self, request: Reduce, given: np.ndarray) -> None:
        """Sum this shard's part of all vectors, and update the shard."""
        own = self._shard.range.size
        gives = request.vector is not None
        sends = self._sizes if gives else [0] * len(self._sizes)
        receives = np.where(given, own, 0).tolist()
        ordinals = (np.cumsum(receives) - receives).tolist()
        vector = request.vector if gives else self._received[:0]
        self._peers.Alltoallv(
            [vector, sends, self._starts if gives else sends, self._type],
            [self._received, receives, ordinals, self._type],
        )
        parts = self._received[: int(given.sum())]
        portion = int(self._all[:, PORTION].max())
        self._shard.receive_sum(parts, request.mean, (portion, portion))

    def _gather(self, parameters: np.ndarray) -> None:
        """Bring all shards into a vector."""
        self._peers.Allgatherv(self._shard.parameters, [parameters, self._sizes, self._starts, self._type])
        self._latest = parameters
