"""A fragment of the vector, which workers reduce while they compute."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from mpidl.engines.mpi.shard_collectives import ShardCollectives
from mpidl.parameters.ranges import Range
from mpidl.shards.shard import Shard
from mpidl.shards.snapshot import Snapshot
from mpidl.transport.protocol import Meeting


class Fragment:
    """A fragment, this worker's shard of it, and the reduction of it that is under way.

    A reduction has the steps of `mpidl.engines.mpi.by_reduction.ByReduction`. Those of several fragments may be under
    way: their all-to-alls and their all-gathers have a communicator each, on which all workers begin them in the same
    order.

    Parameters
    ----------
    number : int
        The number of this worker's shard.
    shard : Shard
    shards : sequence of Range
        The fragment's shards on the workers with the same slice of the vector, counted from the slice's beginning.

    Attributes
    ----------
    part : Range
        The fragment, counted from the slice's beginning.
    snapshot : Snapshot
    says, all : array (len(Meeting),), (workers, len(Meeting)) of int64
        The messages of this worker and of all workers with the reduction; see `Meeting`.
    result : array (part.size,)
        The result of the reduction.
    applied : bool
        Whether the shard has been updated.
    """

    def __init__(self, number: int, shard: Shard, shards: Sequence[Range]) -> None:
        self.number, self.shard, self.snapshot = number, shard, Snapshot(shard)
        self.part = Range(shards[0].start, shards[-1].stop)
        self._shards = [each.shift(-self.part.start) for each in shards]
        self.says = np.zeros(len(Meeting), np.int64)
        self.all = np.zeros((len(shards), len(Meeting)), np.int64)
        own = shard.range.size
        # The parts that arrive are no longer needed when the result does.
        memory = np.empty(max(len(shards) * own, self.part.size), shard.parameters.dtype)
        self._received, self.result = memory[: len(shards) * own].reshape(-1, own), memory[: self.part.size]
        self.applied = False
        self._requests: list[MPI.Request] = []

    def bind(self, scattering: MPI.Intracomm, gathering: MPI.Intracomm) -> None:
        """Exchange with the workers of two communicators from now on."""
        self._scattering = scattering
        dtype = self.shard.parameters.dtype
        self._to_shards = ShardCollectives(scattering, self._shards, dtype)
        self._to_all = ShardCollectives(gathering, self._shards, dtype)

    def unbind(self) -> None:
        """Let go of the communicators."""
        for collectives in (self._to_shards, self._to_all):
            collectives.free()

    @property
    def given(self) -> list[int]:
        """The workers whose vectors count."""
        found: list[int] = np.flatnonzero(self.all[:, Meeting.GIVES]).tolist()
        return found

    def start(self, vector: np.ndarray) -> None:
        """Send every worker its shard of this worker's fragment, shape (part.size,), with this worker's message."""
        self.applied = False
        meeting = self._scattering.Iallgather(self.says, self.all)
        self._requests = [meeting, self._to_shards.start_scatter(vector, self._received)]

    def arrived(self, wait: bool = False) -> bool:
        """Return whether all messages under way have arrived; with `wait`, wait for them."""
        if wait:
            MPI.Request.Waitall(self._requests)
        return bool(MPI.Request.Testall(self._requests))

    def apply(self) -> None:
        """Update the shard by the mean of the vectors that count, if there are any, and start sending it to all."""
        given, weights = self.given, self.all.view(np.float64)[:, Meeting.WEIGHT]
        self.applied, self._requests = True, []
        if given:
            portion = int(self.all[:, Meeting.PORTION].max())
            parts = [self._received[worker] for worker in given]
            self.shard.receive_sum(parts, weights[given].tolist(), (portion, portion))
            self._requests = self._to_all.start_gather(self.shard.parameters, self.result)

    def gather(self, vector: np.ndarray) -> None:
        """Gather the present shards of the fragment into a vector, shape (part.size,)."""
        self._to_all.gather(self.shard.parameters, vector)
