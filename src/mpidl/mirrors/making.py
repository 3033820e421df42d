"""Making a mirror: an interim checkpoint each of whose files lies in the memory of two nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

from mpidl.errors import MpidlError, as_line
from mpidl.launch.output import say
from mpidl.mirrors.exchange import BROKEN, Address, Memory, Remote
from mpidl.mirrors.place import discard, make_room
from mpidl.storage.files import INDEX, INTERIM, scratch
from mpidl.storage.index import Index

T = TypeVar("T")

#: The most nodes that are asked at the same time.
AT_ONCE = 64


class Mirrors:
    """The mirrors of a run, as its ranks make them every `every` seconds.

    Each rank writes its files into its node's memory. The coordinator has each node copy those of the node before, so
    that the loss of a node leaves one of each; the last mirror goes when the next one is complete.

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

    def complete(self, order: int, index: Index) -> bool:
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

    def _nodes(self, stack: ExitStack) -> list[Memory | Remote]:
        """Return the memory of each node."""
        here = Memory(self._place, self._key)
        return [
            here if number == self._own else stack.enter_context(Remote(address, self._key))
            for number, address in enumerate(self._addresses)
        ] or [here]

    def _complete(self, directory: Path, index: Index, nodes: Sequence[Memory | Remote]) -> None:
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
