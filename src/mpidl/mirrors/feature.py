"""Mirrors: checkpoints each of whose files lies in the memory of two nodes; and what a job needs for them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from mpidl.errors import MpidlError, as_line, outcome
from mpidl.launch.output import say
from mpidl.mirrors.exchange import BROKEN, Address, Keeper, NodeMemory, Remote
from mpidl.mirrors.memory import discard, identity, make_room, place_of, prepare, recover, sweep
from mpidl.storage.files import INDEX, INTERIM, scratch
from mpidl.storage.writer import CheckpointIndex, check_room

T = TypeVar("T")

__all__ = ["alone", "begin", "recover"]

#: The most nodes that are asked at the same time.
AT_ONCE = 64


class Mirrors:
    """The mirrors of a run, as its ranks make them every `every` seconds.

    Each rank writes its files into its node's memory. The coordinator has each node copy those of the node before, so
    that one copy of each survives the loss of a node. The last mirror is removed when the next one is complete.

    `place` is that in this node's memory, `token` the one of `mpidl.storage.files.scratch`, `key` the job's.
    `addresses` has those of the nodes' keepers, of which number `own` is this node's.
    """

    def __init__(
        self, every: float, place: Path, token: str, key: bytes = b"", addresses: Sequence[Address] = (), own: int = 0
    ) -> None:
        self.every, self._place, self._token, self._key = every, place, token, key
        self._addresses, self._own = addresses, own
        self._failing = False

    def scratch(self, order: int) -> Path:
        """Return the directory in which this rank writes its files for an order."""
        directory = scratch(self._place, order, self._token)
        directory = directory.with_name(f"{directory.name}{INTERIM}")
        make_room(self._place, directory.name)
        return directory

    def complete(self, order: int, index: CheckpointIndex) -> bool:
        """Complete the mirror of an order, and remove the one before; return whether that could be done.

        A line says why if it couldn't, unless it is one of several in a row.
        """
        try:
            with ExitStack() as stack:
                self._complete(self.scratch(order), index, self._nodes(stack))
        except (MpidlError, *BROKEN) as error:
            if not self._failing:
                say(f"topology.mirror: none made at step {index.position.step}: {as_line(error)}")
            self._failing = True
            return False
        self._failing = False
        return True

    def discard(self) -> None:
        """Remove all mirrors of the run from this node."""
        discard(self._place)

    def _nodes(self, stack: ExitStack) -> list[NodeMemory | Remote]:
        """Return the memory of each node."""
        here = NodeMemory(self._place, self._key)
        return [
            here if number == self._own else stack.enter_context(Remote(address, self._key))
            for number, address in enumerate(self._addresses)
        ] or [here]

    def _complete(self, directory: Path, index: CheckpointIndex, nodes: Sequence[NodeMemory | Remote]) -> None:
        mirror = directory.name
        held = _of_each([partial(node.describe, mirror) for node in nodes])
        found = {name: each for files in held for name, each in files.items()}
        if missing := [name for name in index.names if name not in found]:
            raise MpidlError(f"{missing[0]} isn't there: is {self._place.parents[1]} of its node full?")
        directory.mkdir(0o700, exist_ok=True)  # This node's ranks may have written nothing.
        index.write(directory, found)
        names = [list(files) for files in held]
        names[self._own].append(INDEX)
        if len(nodes) > 1:
            before = range(-1, len(nodes) - 1)
            pairs = [(node, self._addresses[each], names[each]) for node, each in zip(nodes, before, strict=True)]
            _of_each([partial(node.fetch, mirror, source, wanted) for node, source, wanted in pairs])
        _of_each([partial(node.keep_only, mirror) for node in nodes])


def _of_each(actions: Sequence[Callable[[], T]]) -> list[T]:
    """Carry out actions at the same time; return what they return, or raise the first one's error."""
    if len(actions) == 1:
        return [actions[0]()]
    with ThreadPoolExecutor(min(len(actions), AT_ONCE)) as threads:
        return [each.result() for each in [threads.submit(action) for action in actions]]


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
    """Make the place of a run's mirrors, and remove the places of runs that are over."""
    sweep(place.parent)
    prepare(place, run)
    check_room(place, needed)
    return place


def _refuse(cause: MpidlError) -> None:
    say(f"topology.mirror: the run continues without: {cause}")


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
            keeper = Keeper(number, NodeMemory(place, key), key)
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
            say("topology.mirror: with one node, mirrors are lost with it")
        yield Mirrors(every, place_of(known), token, key, addresses, number)


def _reach(rank: int, firsts: Sequence[int], addresses: Sequence[Address], key: bytes) -> None:
    """Try the connections that mirrors need: from the coordinator to all nodes, and from each to the one before."""
    if rank not in firsts or not addresses:
        return
    for address in addresses if rank == 0 else [addresses[firsts.index(rank) - 1]]:
        with Remote(address, key):
            pass
