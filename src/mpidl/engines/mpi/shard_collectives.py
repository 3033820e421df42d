"""Collectives by which workers exchange the shards of whole vectors, of any size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from mpidl.parameters.ranges import Range

#: Elements that one count or displacement may stand for: both are C ints, except in MPI 4.
LARGEST = 2**31 - 1


class ShardCollectives:
    """The collectives of the workers that hold a shard each.

    Displacements lie in datatypes, or count from the beginning of a piece of the vector, so that no number exceeds
    `LARGEST` however large the vector is. A vector of up to `LARGEST` elements is one piece.

    `peers` are the workers, `shards` the shard of each.
    """

    def __init__(self, peers: MPI.Intracomm, shards: Sequence[Range], dtype: Any) -> None:
        self._peers, self._own = peers, shards[peers.rank]
        self._element = MPI.Datatype.fromcode(np.dtype(dtype).char)
        self._shards = [self._block(shard.start, shard.size) for shard in shards]
        self._rows = [self._block(row * self._own.size, self._own.size) for row in range(len(shards))]
        self._pieces = [self._piece(shards, start) for start in range(0, shards[-1].stop, LARGEST)]

    def _block(self, start: int, size: int) -> MPI.Datatype:
        """Return the type of `size` elements that lie `start` elements behind an address."""
        firsts = range(0, size, LARGEST)
        counts = [min(LARGEST, size - first) for first in firsts]
        displacements = [(start + first) * self._element.size for first in firsts]
        return self._element.Create_hindexed(counts, displacements).Commit()

    def _piece(self, shards: Sequence[Range], start: int) -> tuple[slice, slice, list[int], list[int]]:
        """Return a piece of the whole vector, its part of this worker's shard, and every worker's counts in it."""
        stop = min(start + LARGEST, shards[-1].stop)
        bounds = np.clip([(shard.start, shard.stop) for shard in shards], start, stop)
        own = bounds[self._peers.rank] - self._own.start
        return (
            slice(start, stop),
            slice(*own.clip(0).tolist()),
            (bounds[:, 1] - bounds[:, 0]).tolist(),
            (bounds[:, 0] - start).tolist(),
        )

    def scatter(self, vector: np.ndarray | None, given: np.ndarray, received: np.ndarray) -> None:
        """Send to every worker its shard of a vector, and receive those of this worker's shard.

        `vector` is None on a worker that gives none; `given` says which workers give one. The first rows of `received`,
        of shape (workers, shard's size), receive the parts, in the order of the workers that give them.
        """
        rank, nowhere = self._peers.rank, [0] * len(self._shards)
        ordinals = (np.cumsum(given) - given).tolist()
        sends, receives = [int(given[rank])] * len(given), given.astype(int).tolist()
        if vector is not None:
            # MPI copies a rank's own part several times slower, through its own buffers.
            received[ordinals[rank]] = vector[slice(*self._own)]
            sends[rank] = receives[rank] = 0
        self._peers.Alltoallw(
            [received[:0] if vector is None else vector, sends, nowhere, self._shards],
            [received, receives, nowhere, [self._rows[ordinal] for ordinal in ordinals]],
        )

    def start_scatter(self, vector: np.ndarray, received: np.ndarray) -> MPI.Request:
        """Begin what `scatter` does where all workers give a vector."""
        rank, nowhere = self._peers.rank, [0] * len(self._shards)
        counts = [int(worker != rank) for worker in range(len(self._shards))]
        received[rank] = vector[slice(*self._own)]
        return self._peers.Ialltoallw([vector, counts, nowhere, self._shards], [received, counts, nowhere, self._rows])

    def gather(self, values: np.ndarray, vector: np.ndarray) -> None:
        """Gather all workers' shards, `values` being this worker's, into a vector."""
        for piece, own, counts, displacements in self._pieces:
            self._peers.Allgatherv(values[own], [vector[piece], counts, displacements, self._element])

    def start_gather(self, values: np.ndarray, vector: np.ndarray) -> list[MPI.Request]:
        """Begin what `gather` does."""
        return [
            self._peers.Iallgatherv(values[own], [vector[piece], counts, displacements, self._element])
            for piece, own, counts, displacements in self._pieces
        ]

    def free(self) -> None:
        """Free the datatypes."""
        for datatype in (*self._shards, *self._rows):
            datatype.Free()
