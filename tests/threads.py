"""Groups (`mpidl.partition.group.Group`) whose ranks are threads of one process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from mpidl.partition.group import PersistentMessage, RankGroup

Result = TypeVar("Result")


class Broken(Exception):
    """Another rank of the group has failed."""


@dataclass
class _Channel:
    """Arrays in flight from one rank to another: the sender's own, until they are copied."""

    arrays: deque[np.ndarray] = field(default_factory=deque)
    sent: int = 0
    copied: int = 0


class _Common:
    """The shared state of the ranks of a group."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed = threading.Condition()
        self.failed = False
        self.channels: dict[tuple[int, int, int], _Channel] = {}
        self.barrier = threading.Barrier(size)
        self.given: list[Any] = [None] * size
        self.subgroups: dict[tuple[int, ...], _Common] = {}

    def fail(self) -> None:
        """Have all ranks that wait, now or later, raise `Broken`."""
        with self.changed:
            self.failed = True
            self.changed.notify_all()
            subgroups = list(self.subgroups.values())
        self.barrier.abort()
        for each in subgroups:
            each.fail()

    def wait(self, ready: Callable[[], bool]) -> None:
        """Wait, with the lock, until `ready()`."""
        self.changed.wait_for(lambda: self.failed or ready())
        if self.failed:
            raise Broken


class ThreadGroup(RankGroup):
    """A rank of a group (`RankGroup`) whose ranks are threads; `run` makes them."""

    def __init__(self, rank: int, common: _Common) -> None:
        self.rank, self.size, self._common = rank, common.size, common

    def send(self, to: int, array: np.ndarray, tag: int) -> PersistentMessage:
        common, channel = self._common, self._channel(self.rank, to, tag)
        last = 0

        def start() -> None:
            nonlocal last
            with common.changed:
                channel.arrays.append(array)
                channel.sent += 1
                last = channel.sent
                common.changed.notify_all()

        def wait() -> None:
            with common.changed:
                common.wait(lambda: channel.copied >= last)

        return PersistentMessage(start, wait)

    def receive(self, source: int, array: np.ndarray, tag: int) -> PersistentMessage:
        common, channel = self._common, self._channel(source, self.rank, tag)
        started = False

        def start() -> None:
            nonlocal started
            started = True

        def wait() -> None:
            nonlocal started
            if not started:
                return
            with common.changed:
                common.wait(lambda: bool(channel.arrays))
            np.copyto(array, channel.arrays[0].reshape(array.shape))
            started = False
            with common.changed:
                channel.arrays.popleft()
                channel.copied += 1
                common.changed.notify_all()

        return PersistentMessage(start, wait)

    def subgroup(self, ranks: Sequence[int]) -> ThreadGroup:
        with self._common.changed:
            common = self._common.subgroups.setdefault(tuple(ranks), _Common(len(ranks)))
            common.failed |= self._common.failed
        return ThreadGroup(list(ranks).index(self.rank), common)

    def share(self, value: Any) -> Any:
        return self._together(value, lambda given: given[0])

    def gather(self, array: np.ndarray, gathered: np.ndarray) -> None:
        self._together(array, lambda given: np.stack(given, out=gathered))

    def free(self) -> None: ...

    def _channel(self, source: int, to: int, tag: int) -> _Channel:
        with self._common.changed:
            return self._common.channels.setdefault((source, to, tag), _Channel())

    def _together(self, value: Any, use: Callable[[list[Any]], Result]) -> Result:
        """Return `use` of the values of all ranks."""
        common = self._common
        common.given[self.rank] = value
        try:
            common.barrier.wait()
            found = use(common.given)
            common.barrier.wait()
        except threading.BrokenBarrierError:
            raise Broken from None
        return found


def run(size: int, work: Callable[[RankGroup], Result]) -> list[Result]:
    """Return what `work`, called with a rank's group, returns on each of `size` threads.

    Raises
    ------
    Exception
        That of the lowest rank that failed by itself. The others stop where they wait for it.
    """
    common = _Common(size)

    def rank(number: int) -> Result:
        try:
            return work(ThreadGroup(number, common))
        except BaseException:
            common.fail()
            raise

    with ThreadPoolExecutor(size) as pool:
        ranks = [pool.submit(rank, number) for number in range(size)]
    errors = [error for each in ranks if (error := each.exception()) is not None and not isinstance(error, Broken)]
    if errors:
        raise errors[0]
    return [each.result() for each in ranks]
