"""Agreement among ranks: results of the first rank, errors of any, and checks that all have the same values."""

from __future__ import annotations

import functools
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import xxhash

from mpidl.errors import MpidlError, UsageError, outcome, quoted
from mpidl.launch import environment, leftovers, shared_memory
from mpidl.launch.output import show_traceback

T = TypeVar("T")

#: Returns the values of all ranks on every rank, as ``comm.allgather`` does.
AllGather = Callable[[Any], list[Any]]


_chosen: ContextVar[Any] = ContextVar("communicator", default=None)


@contextmanager
def among(comm: Any) -> Iterator[None]:
    """In this context, let the ranks of a communicator, an `MPI.Intracomm`, agree and train; if it is None, all ranks.

    Raise UsageError if it is no communicator, or this rank isn't in it.
    """
    if comm is not None and not (comm and hasattr(comm, "allgather")):
        expected = "a communicator of mpi4py that this rank is in, such as MPI.COMM_WORLD.Split(color)"
        raise UsageError(f"comm: found {quoted(comm)}, expected {expected}")
    token = _chosen.set(comm)
    try:
        yield
    except MpidlError as error:
        error.everywhere &= comm is None or comm.size == environment.world().size
        raise
    finally:
        _chosen.reset(token)


@contextmanager
def on_all_ranks() -> Iterator[None]:
    """Mark a `MpidlError` that leaves this context as one that all ranks raise."""
    try:
        yield
    except MpidlError as error:
        error.everywhere = True
        raise


def communicator() -> Any:
    """Return the communicator of the ranks that train; None if this process does so alone."""
    comm = _chosen.get()
    if comm is None:
        return _all_ranks()
    return None if comm.size == 1 else comm


def ranks() -> tuple[int, AllGather]:
    """Return this rank, and a function that gathers the values of all ranks on each."""
    comm = communicator()
    return (0, lambda value: [value]) if comm is None else (comm.rank, comm.allgather)


@functools.cache
def _all_ranks() -> Any:
    """Return MPI.COMM_WORLD; None if there is one rank.

    With more, the first call removes what a killed job has left on this node, then initialises MPI.
    """
    if environment.world().size == 1:
        return None
    with on_all_ranks():
        shared_memory.check_launcher()
    if environment.first_of_node():
        leftovers.sweep()
    leftovers.note()
    begun = "mpi4py.MPI" in sys.modules
    environment.prepare_mpi()
    from mpi4py import MPI

    if begun and environment.without_ucx():
        from mpidl.rma import ucx

        ucx.quieten()
    leftovers.note()
    environment.check_world(MPI.COMM_WORLD.size)
    return MPI.COMM_WORLD


def together(
    action: Callable[[], T], world: tuple[int, AllGather] | None = None, name: Callable[[int], str] | None = None
) -> T:
    """Return what an action returns on this rank; if it fails on some ranks, raise the first one's error on all.

    `world` is this rank, and a function that gathers the values of all; by default those of `ranks`. `name` returns the
    name of a rank, which is added to the line unless all ranks have met an error; by default its number and, if there
    are several hosts, its host.
    """
    result = outcome(action)
    error = result if isinstance(result, MpidlError) else None
    rank, gather = ranks() if world is None else world
    found = gather(error)
    first = next((number for number, each in enumerate(found) if each is not None), None)
    if first is None:
        return cast(T, result)
    if error is not None and first == rank:
        _trace(error, len(found))
    with on_all_ranks():
        if None not in found:
            raise found[first]
        where = _rank_and_host(first, gather) if name is None else name(first)
        raise type(found[first])(f"{found[first]} ({where})")


def _rank_and_host(rank: int, gather: AllGather) -> str:
    hosts = gather(socket.gethostname())
    return f"rank {rank}{f' on {hosts[rank]}' if len(set(hosts)) > 1 else ''}"


def by_first_rank(look: Callable[[], T]) -> T:
    """Return what the first rank finds, or raise the error that it meets, on every rank."""
    rank, gather = ranks()
    own = outcome(look) if rank == 0 else None
    outcomes = gather(own)
    if isinstance(own, MpidlError):
        _trace(own, len(outcomes))
        raise own
    if isinstance(outcomes[0], MpidlError):
        raise outcomes[0]
    return cast(T, outcomes[0])


def _trace(error: MpidlError, size: int) -> None:
    """Print an error's traceback if MPIDL_DEBUG asks for it; in one process, the command line does."""
    if size > 1 and os.environ.get("MPIDL_DEBUG"):
        show_traceback(error)


def at_first_rank(value: T) -> list[T] | None:
    """Return the values of all ranks on the first one, and None on the others."""
    comm = communicator()
    found: list[T] | None = [value] if comm is None else comm.gather(value)
    return found


def check_same(what: str, found: Mapping[str, str] | None, rank: int, gather: AllGather) -> Mapping[str, str]:
    """Check that all ranks have found the same; collective.

    `what` names it in the error. `found` has values by name; it is None on a rank that is not compared, of which there
    is at least one other. Return what was found. If ranks differ, raise UsageError on all, with the first value that
    does.
    """
    checksums = gather(None if found is None else xxhash.xxh3_128_digest(repr(sorted(found.items())).encode()))
    first = next(number for number, checksum in enumerate(checksums) if checksum is not None)
    expected: Mapping[str, str] = gather(found if rank == first else None)[first]
    if all(checksum in (None, checksums[first]) for checksum in checksums):
        return expected
    names = [] if found is None else [*expected, *(name for name in found if name not in expected)]
    differs = [(name, found.get(name)) for name in names if found is not None and found.get(name) != expected.get(name)]
    differences = gather(differs[0] if differs else None)
    name, value = next(difference for difference in differences if difference is not None)
    there = [number for number, difference in enumerate(differences) if difference == (name, value)]
    raise UsageError(
        f"{name}: {expected.get(name, 'absent')} on rank {first}, {value or 'absent'} on {_listed(there)}; "
        f"all ranks must have the same {what}"
    )


def _listed(numbers: list[int]) -> str:
    """Return rank numbers as text, the first few of them if they are many."""
    text = ", ".join(map(str, numbers[:8]))
    return f"rank{'s' * (len(numbers) > 1)} {text}{', ...' * (len(numbers) > 8)}"
