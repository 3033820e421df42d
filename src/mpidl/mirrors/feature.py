"""Whether a job makes mirrors, and what it needs for them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from mpidl.errors import MpidlError, outcome
from mpidl.launch.output import say
from mpidl.mirrors.exchange import Address, Keeper, Memory, Remote
from mpidl.mirrors.making import Mirrors
from mpidl.mirrors.place import identity, place_of, prepare, sweep
from mpidl.mirrors.recovery import recover
from mpidl.storage.writer import check_room

__all__ = ["alone", "begin", "recover"]

#: The mirrors in memory at a time: the last one and the next one.
KEPT = 2


def alone(every: float | None, run: Path, token: str) -> Mirrors | None:
    """Return the mirrors of a run in one process, None if it makes none; `token` is as for `Mirrors`."""
    if every is None:
        return None
    found = outcome(partial(_prepared, run))
    if isinstance(found, MpidlError):
        _refuse(found)
        return None
    return Mirrors(every, found, token)


def _prepared(run: Path) -> Path:
    known = identity(run, make=True)
    assert known is not None
    return _made(place_of(known), run, 0)


def _made(place: Path, run: Path, needed: int) -> Path:
    """Make the place of a run's mirrors, and remove those of others that are of no use."""
    sweep(place.parent)
    prepare(place, run)
    check_room(place, needed)
    return place


def _refuse(cause: MpidlError) -> None:
    say(f"topology.mirror: the run goes on without: {cause}")


@contextmanager
def begin(
    every: float | None,
    run: Path,
    token: str,
    own: int,
    rank: int,
    nodes: Sequence[int],
    gather: Callable[[Any], list[Any]],
) -> Iterator[Mirrors | None]:
    """Begin to make mirrors on all ranks of a job, until the context is left; collective.

    If that isn't possible, a line says why and None is yielded, as for a run that makes none.

    Parameters
    ----------
    every : float, optional
        Seconds between mirrors; None for a run that makes none.
    run : Path
        The run's directory.
    token : str
        As for `Mirrors`.
    own : int
        Bytes that this rank writes at least into each checkpoint.
    rank : int
    nodes : sequence of int
        For each rank, the lowest rank of its node.
    gather : callable
        Returns the values of all ranks on every rank.
    """
    if every is None:
        yield None
        return
    firsts, sizes = sorted(set(nodes)), gather(own)
    number = firsts.index(nodes[rank])
    of_nodes = [sum(size for size, node in zip(sizes, nodes, strict=True) if node == first) for first in firsts]
    # A node has its own files and, if there are others, those of the node before.
    needed = KEPT * (of_nodes[number] + (of_nodes[number - 1] if len(firsts) > 1 else 0))
    known, key = gather((outcome(partial(identity, run, make=True)), secrets.token_bytes(32)) if rank == 0 else None)[0]
    with ExitStack() as stack:

        def keep() -> Address | None:
            if isinstance(known, MpidlError):
                raise known
            if rank not in firsts:
                return None
            place = _made(place_of(known), run, needed)
            if len(firsts) == 1:
                return None
            keeper = Keeper(number, Memory(place, key), key)
            stack.callback(keeper.close)
            return keeper.address

        found = gather(outcome(keep))
        addresses = [] if len(firsts) == 1 else [found[first] for first in firsts]
        if not any(isinstance(each, MpidlError) for each in found):
            found = gather(outcome(partial(_reach, rank, firsts, addresses, key)))
        errors = [each for each in found if isinstance(each, MpidlError)]
        if errors:
            if rank == 0:
                _refuse(errors[0])
            yield None
            return
        if rank == 0 and len(firsts) == 1:
            say("topology.mirror: on one node, mirrors outlive the job, but not the node")
        yield Mirrors(every, place_of(known), token, key, addresses, number)


def _reach(rank: int, firsts: Sequence[int], addresses: Sequence[Address], key: bytes) -> None:
    """Try the connections that mirrors need: from the coordinator to all nodes, and from each to the one before."""
    if rank not in firsts or not addresses:
        return
    for address in addresses if rank == 0 else [addresses[firsts.index(rank) - 1]]:
        with Remote(address, key):
            pass
