"""Samples that the training ranks of a node, or of all nodes, read once and keep in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from math import prod
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from mpidl.data.batch import Batch
from mpidl.data.cached import Cached, SampleFormat, part
from mpidl.errors import MpidlError, UsageError
from mpidl.launch.shared_memory import check_free, of_windows
from mpidl.parameters.ranges import Range
from mpidl.rma.nodes import neighbours
from mpidl.rma.ownership import Owner
from mpidl.rma.remote_samples import NodeSamples, RemoteSamples

#: Bytes at whose multiples arrays begin.
ALIGNMENT = 64


class SharedSamples(Owner):
    """The memory of a node for the samples of splits; `free` is collective, even after an error that all ranks raise.

    A node has all samples or, if they are distributed, the parts of its workers: each worker of the job has as many
    chunks as any other. Where parts of a split can be read by themselves, each rank reads its own. Otherwise, one rank
    reads all, and sends other nodes theirs.

    Ranks that don't train have no access to the memory. `agree` carries out an action on every rank of `comm`; if it
    fails on some, it raises the first one's error on all. `guard` is that of `RemoteSamples`, which is `remote`, if
    there are other nodes with samples. `held` has the samples of each split on this node, and `nbytes` the size of its
    memory.
    """

    def __init__(
        self, comm: MPI.Intracomm, trains: bool, splits: Sequence[Cached], agree: Callable[[Callable[[], Any]], Any],
        guard: Callable[[], AbstractContextManager[Any]],
    ) -> None:  # fmt: skip
        self._splits, self._window = splits if trains else (), None
        self.held: list[Range] = []
        self.nbytes = 0
        self.remote: RemoteSamples | None = None
        # At its first reduction of objects, mpi4py duplicates a communicator and holds the GIL meanwhile: later, a rank
        # would wait for others that wait for its thread.
        comm.allreduce(0)
        workers: Any = comm.Split(0 if trains else MPI.UNDEFINED)
        sharers = Sharers(workers, splits[0].distributed) if trains else None
        agree(lambda: _check_threads(sharers))
        forms: list[SampleFormat] = agree(
            lambda: [split.form() for split in self._splits] if sharers is not None and sharers.comm.rank == 0 else []
        )
        if sharers is None:
            for _ in range(2):
                agree(lambda: None)
            return
        forms = sharers.comm.bcast(forms)
        self.held = [sharers.held(split) for split in splits]
        self.nbytes = self._size(forms)
        agree(lambda: self._check_space(sharers.node))
        arrays = self._allocate(sharers.node, forms)
        try:
            agree(lambda: self._read(sharers, forms, arrays))
        except MpidlError:
            self.free()
            raise
        if len(sharers.nodes) == 1:
            for split, own in zip(splits, arrays, strict=True):
                split.use(*own)
        else:
            self._join(sharers, arrays, guard)
        sharers.free()
        workers.Free()

    def _join(
        self, sharers: Sharers, arrays: Sequence[Sequence[np.ndarray]], guard: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        """Give this node access to the samples of others from now on, and them to those of this one."""
        parts = [
            NodeSamples(own[0], own[1], sharers.starts(split)) for split, own in zip(self._splits, arrays, strict=True)
        ]
        self.remote = RemoteSamples(sharers.comm, sharers.nodes, parts, guard)
        for number, split in enumerate(self._splits):
            split.use_store(self.remote.store(number))

    def _read(self, sharers: Sharers, forms: Sequence[SampleFormat], arrays: Sequence[Sequence[np.ndarray]]) -> None:
        for split, form, held, own in zip(self._splits, forms, self.held, arrays, strict=True):
            if split.by_parts:
                for block, batch in split.read(sharers.part(split), form):
                    keep(own, held, block, batch)
            elif sharers.comm.rank == 0:
                sharers.hand_out(split, form, own)
            elif sharers.node.rank == 0:
                sharers.take_in(split, form, own)

    def _check_space(self, node: MPI.Intracomm) -> None:
        if node.rank or node.size == 1:
            return
        remedy = "use data.keep = 'files', or give it more (a container: --shm-size)"
        check_free(of_windows(), self.nbytes, "data.keep: samples in memory", remedy)

    def _size(self, forms: Sequence[SampleFormat]) -> int:
        """Return the bytes of the samples on this node; not 0, even if it has none."""
        sizes = (
            held.size * prod(shape) * dtype.itemsize
            for held, form in zip(self.held, forms, strict=True)
            for shape, dtype in form
        )
        return max(ALIGNMENT, sum(map(_aligned, sizes)))

    def _allocate(self, node: MPI.Intracomm, forms: Sequence[SampleFormat]) -> list[list[np.ndarray]]:
        """Return arrays for the samples on this node, in its memory."""
        window: Any = MPI.Win.Allocate_shared(self.nbytes if node.rank == 0 else 0, 1, comm=node)
        self._window = window
        memory: Any = window.Shared_query(0)[0]
        found, place = [], 0
        for held, form in zip(self.held, forms, strict=True):
            arrays = []
            for shape, dtype in form:
                whole = (held.size, *shape)
                arrays.append(np.frombuffer(memory, dtype, prod(whole), place).reshape(whole))
                place += _aligned(arrays[-1].nbytes)
            found.append(arrays)
        return found

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None or issubclass(kind, MpidlError):
            self.free()

    def free(self) -> None:
        """Free the memory when no rank requests samples any more; later uses read the files."""
        if self.remote is not None:
            remote, self.remote = self.remote, None
            remote.free()
        for split in self._splits:
            split.release()
        if self._window is not None:
            window, self._window = self._window, None
            window.Free()


def _check_threads(sharers: Sharers | None) -> None:
    """Check that a thread may answer other nodes while its worker computes."""
    if sharers is not None and len(sharers.nodes) > 1 and MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        raise UsageError(
            "data.keep: 'distributed', but MPI allows calls from one thread only, expected 'memory' or 'files', or "
            "MPI4PY_RC_THREAD_LEVEL=multiple"
        )


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


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
