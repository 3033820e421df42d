"""Samples that the ranks of a node which train have in common: read once from files, and kept in its memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from mpi4py import MPI

from mpidl.data.kept import Form, Kept
from mpidl.errors import MpidlError
from mpidl.launch.room import SHARED_MEMORY, check_room
from mpidl.parameters.ranges import Range, share
from mpidl.rma.nodes import neighbours
from mpidl.rma.ownership import Owner

#: Bytes at whose multiples arrays begin.
ALIGNMENT = 64


class SharedSamples(Owner):
    """The memory of a node for the samples of splits; `free` is collective, also after an error that all ranks raise.

    Where parts of a split can be read by themselves, the ranks of the node read a part each. Else the first one reads.

    Parameters
    ----------
    comm : MPI.Intracomm
    trains : bool
        Whether this rank trains; others have no part in the memory.
    splits : sequence of Kept
        The same on all ranks.
    agree : callable
        Carries out an action on every rank of `comm`; if it fails on some, raises the first one's error on all.
    """

    def __init__(
        self, comm: MPI.Intracomm, trains: bool, splits: Sequence[Kept], agree: Callable[[Callable[[], Any]], Any]
    ) -> None:
        self._splits, self._window = splits if trains else (), None
        workers: Any = comm.Split(0 if trains else MPI.UNDEFINED)
        node = neighbours(workers) if trains else None
        first = node is not None and node.rank == 0
        forms: list[Form] = agree(lambda: [split.form() for split in splits] if first else [])
        agree(lambda: _check_room(forms) if first and node is not None and node.size > 1 else None)
        if node is None:
            agree(lambda: None)
            return
        forms = node.bcast(forms)
        arrays = self._allocate(node, forms)
        agree(lambda: self._read(node, arrays))
        for split, (inputs, targets) in zip(splits, arrays, strict=True):
            split.use(inputs, targets)
        node.Free()
        workers.Free()

    def _read(self, node: MPI.Intracomm, arrays: Sequence[Sequence[np.ndarray]]) -> None:
        for split, (inputs, targets) in zip(self._splits, arrays, strict=True):
            split.read(inputs, targets, _part(split, node))

    def _allocate(self, node: MPI.Intracomm, forms: Sequence[Form]) -> list[list[np.ndarray]]:
        """Return arrays of these forms in the memory of the node."""
        window: Any = MPI.Win.Allocate_shared(_nbytes(forms) if node.rank == 0 else 0, 1, comm=node)
        self._window = window
        memory: Any = window.Shared_query(0)[0]
        found, place = [], 0
        for form in forms:
            arrays = []
            for shape, dtype in form:
                arrays.append(np.frombuffer(memory, dtype, prod(shape), place).reshape(shape))
                place += _aligned(arrays[-1].nbytes)
            found.append(arrays)
        return found

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None or issubclass(kind, MpidlError):
            self.free()

    def free(self) -> None:
        """Give the memory back: whoever needs samples again reads them."""
        for split in self._splits:
            split.release()
        if self._window is not None:
            window, self._window = self._window, None
            window.Free()


def _part(split: Kept, node: MPI.Intracomm) -> Range:
    """Return which samples this rank reads."""
    if not split.by_parts:
        return Range(0, split.samples if node.rank == 0 else 0)
    own = share(-(-split.samples // split.chunk), node.rank, node.size)
    return Range(*(min(split.samples, bound * split.chunk) for bound in own))


def _check_room(forms: Sequence[Form]) -> None:
    directory = os.environ.get("OMPI_MCA_osc_sm_backing_directory", SHARED_MEMORY)  # noqa: SIM112
    remedy = "use data.keep = 'files', or give it more (a container: --shm-size)"
    check_room(directory, _nbytes(forms), "data.keep: samples in memory", remedy)


def _nbytes(forms: Sequence[Form]) -> int:
    return sum(_aligned(prod(shape) * dtype.itemsize) for form in forms for shape, dtype in form)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
