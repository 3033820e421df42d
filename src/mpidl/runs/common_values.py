"""The values that the models of all ranks have in common: the first one's at the beginning, the trained at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xxhash
from mpi4py import MPI

from mpidl.launch.output import say
from mpidl.nn.model import CompleteModel
from mpidl.parameters import Layout, Range, moves

#: Bytes of a vector that are sent at a time: a count of MPI is a C int.
PIECE = 1 << 30


def agree_on_initial_values(comm: MPI.Intracomm, model: CompleteModel, servers: Sequence[int] = ()) -> None:
    """Give the model of every rank the parameters, constants, buffers and tables of the first rank's; collective.

    `servers` are the ranks that begin tables with rows of the model's own, and get these.

    Nothing is computed for networks without values yet, which draw the same ones on all ranks. What is the same on all
    ranks is not sent. The first rank says in a line what was not. The models have the same names, shapes
    and dtypes.
    """
    if comm.allreduce(model.drawn, op=MPI.LAND):
        return
    differs, tables = [], comm.bcast(model.tables)
    parameters = model.parameters
    if _differ(comm, [parameters]):
        differs.append("parameters")
        _broadcast(comm, parameters, 0)
    for what, arrays, load in (
        ("constants", model.constants(), model.load_constants),
        ("buffers", model.buffers(), model.load_buffers),
        ("state", _as_arrays(model), model.load_state),
    ):
        if _differ(comm, arrays.values()):
            differs.append(what)
            _share(comm, arrays, load, 0)
    if comm.allreduce(tables != model.tables, op=MPI.LOR):
        differs.append("tables")
        model.tables = tables
    rows = {name: values for name, values in model.weights.first_rows().items() if servers and values is not None}
    if _differ(comm, rows.values()):
        differs.append("rows")
        holders: Any = comm.Split(0 if comm.rank in (0, *servers) else MPI.UNDEFINED)
        if holders != MPI.COMM_NULL:
            rows = {name: np.ascontiguousarray(values) for name, values in rows.items()}
            for values in rows.values():
                _broadcast(holders, values, 0)
            model.weights.load(rows)
            holders.Free()
    if differs and comm.rank == 0:
        text = f"the model's initial {' and '.join(differs)} differ from rank to rank (no seed set?)"
        say(f"{text}; all ranks take those of rank 0")


def share_trained(
    comm: MPI.Intracomm, model: CompleteModel, layout: Layout, held: Sequence[tuple[int, Range]], own: np.ndarray
) -> None:
    """Give the model of every rank the trained parameters; collective.

    `layout` is that of the flat vector of trained parameters. `held` are the ranks of a replica, each with the range of
    that vector that it holds: `own`, which is ignored on others.
    """
    whole = Range(0, layout.size)
    for root, part in held:
        if layout == model.layout:
            if comm.rank == root:
                model.parameters[slice(*part)] = own
            _broadcast(comm, model.parameters[slice(*part)], root)
        else:
            values = own if comm.rank == root else np.empty(part.size, model.dtype)
            _broadcast(comm, values, root)
            for move in moves(layout, part, model.layout, whole):
                move.copy(values, model.parameters)


def share_kept(comm: MPI.Intracomm, model: CompleteModel, ranks: Sequence[int], own: CompleteModel) -> None:
    """Give the model of every rank what a replica keeps for itself; collective.

    `ranks` are those of the replica, and `own` is this rank's part of the model.
    """
    for root in ranks:
        _share(comm, own.buffers(), model.load_buffers, root)
        _share(comm, _as_arrays(own), model.load_state, root)


def _as_arrays(model: CompleteModel) -> dict[str, np.ndarray]:
    return {name: np.asarray(values) for name, values in model.state().items()}


def _share(
    comm: MPI.Intracomm, arrays: Mapping[str, np.ndarray], load: Callable[[Mapping[str, np.ndarray]], None], root: int
) -> None:
    """Let every rank load the arrays of the rank `root`, which other ranks may lack."""
    forms = comm.bcast({name: (values.shape, values.dtype) for name, values in arrays.items()}, root)
    copies = {
        name: np.array(arrays[name], order="C") if comm.rank == root else np.empty(*form)
        for name, form in forms.items()
    }
    for values in copies.values():
        _broadcast(comm, values, root)
    if copies:
        load(copies)


def _broadcast(comm: MPI.Intracomm, array: np.ndarray, root: int) -> None:
    """Bring the values of a contiguous array on the rank `root` to all others; collective."""
    data = array.reshape(-1).view(np.uint8)
    for start in range(0, data.size, PIECE):
        comm.Bcast(data[start : start + PIECE], root=root)


def _differ(comm: MPI.Intracomm, arrays: Iterable[np.ndarray]) -> bool:
    """Return whether arrays have other values on some rank."""
    checksum = xxhash.xxh3_128()
    for array in arrays:
        checksum.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return len(set(comm.allgather(checksum.digest()))) > 1
