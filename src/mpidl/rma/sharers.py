"""The ranks that share samples: the samples of each node and of each rank, and how they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from mpidl.data.batch import Batch
from mpidl.data.cached import Cached, SampleFormat, part
from mpidl.parameters.ranges import Range
from mpidl.rma.nodes import neighbours


class Sharers:
    """The ranks of a node or, where samples are distributed, of all nodes; creation and `free` are collective.

    `workers` are the ranks that train. `comm` has the sharers, those of a node next to each other, `node` those of this
    node, and `nodes` the ranks in `comm` of each.
    """

    def __init__(self, workers: MPI.Intracomm, distributed: bool) -> None:
        self.node: MPI.Intracomm = neighbours(workers)
        firsts = workers.allgather(self.node.bcast(workers.rank)) if distributed else [0] * self.node.size
        order = sorted(range(len(firsts)), key=lambda rank: (firsts[rank], rank))
        self.comm: Any = workers.Split(0, order.index(workers.rank)) if distributed else self.node.Dup()
        found: dict[int, list[int]] = {}
        for place, rank in enumerate(order):
            found.setdefault(firsts[rank], []).append(place)
        self.nodes = list(found.values())
        self._number = next(number for number, ranks in enumerate(self.nodes) if self.comm.rank in ranks)

    def part(self, split: Cached) -> Range:
        """Return the samples that this rank reads, where ranks read parts."""
        return part(split.samples, split.chunk, self.comm.rank, self.comm.size)

    def starts(self, split: Cached) -> NDArray[np.int64]:
        """Return the first sample of each node, and the end of the last one's."""
        firsts = (part(split.samples, split.chunk, ranks[0], self.comm.size).start for ranks in self.nodes)
        return np.array([*firsts, split.samples], np.int64)

    def held(self, split: Cached) -> Range:
        """Return the samples on this node."""
        return _between(self.starts(split), self._number)

    def hand_out(self, split: Cached, form: SampleFormat, own: Sequence[NDArray[Any]]) -> None:
        """Read all samples, copy those of this node into arrays, and send other nodes theirs; called by rank 0."""
        starts = self.starts(split)
        for number, ranks in enumerate(self.nodes):
            held = _between(starts, number)
            try:
                for block, batch in split.read(held, form):
                    if number == 0:
                        keep(own, held, block, batch)
                    else:
                        self._send(batch, ranks[0])
            except Exception:
                for later, others in enumerate(self.nodes[number:], number):
                    if later and _between(starts, later).size:
                        self.comm.Send([b"", MPI.BYTE], others[0])
                raise

    def _send(self, batch: Batch, rank: int) -> None:
        for values in (batch.inputs, batch.targets):
            self.comm.Send([np.ascontiguousarray(values), MPI.BYTE], rank)

    def take_in(self, split: Cached, form: SampleFormat, own: Sequence[NDArray[Any]]) -> None:
        """Receive this node's samples into arrays; called by the first rank of each other node."""
        held, status = self.held(split), MPI.Status()
        for block in split.blocks(held, form):
            for values in own:
                self.comm.Recv([values[slice(*block.shift(-held.start))], MPI.BYTE], 0, status=status)
                if not status.Get_count(MPI.BYTE):
                    return

    def free(self) -> None:
        """Free the communicators."""
        self.comm.Free()
        self.node.Free()


def keep(own: Sequence[NDArray[Any]], held: Range, block: Range, batch: Batch) -> None:
    """Copy a block of the samples into arrays that hold some of them."""
    for values, found in zip(own, (batch.inputs, batch.targets), strict=True):
        values[slice(*block.shift(-held.start))] = found


def _between(starts: NDArray[np.int64], number: int) -> Range:
    return Range(int(starts[number]), int(starts[number + 1]))
