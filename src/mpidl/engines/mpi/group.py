"""The ranks of a replica: how they wait for others, their messages, and the one that decides for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from mpidl.partition.group import PersistentMessage, RankGroup
from mpidl.rma.worker import WorkerLink
from mpidl.transport.protocol import Doing
from mpidl.transport.status import WorkerStatus

#: Seconds after which a worker says that it waits for others.
SAID_AFTER = 1.0


class Waiting:
    """Waits for other ranks, and counts the time in a worker's status.

    It sleeps for at most `longest` seconds, where no rank rings this one.
    """

    def __init__(self, link: WorkerLink, status: WorkerStatus, longest: float | None = None) -> None:
        self._backoff, self._status, self._link = link.backoff(longest), status, link

    def until(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready()`; the time in which it pushes doesn't count."""
        if ready():
            return
        figures, since = self._status.figures, time.monotonic()
        before = figures["doing"]

        def ready_or_late() -> bool:
            if figures["doing"] != Doing.WAITING and time.monotonic() - since > SAID_AFTER:
                figures["doing"] = Doing.WAITING
                self._link.reports.post(self._status.row)
            return ready()

        with self._status.wait:
            self._backoff.until(ready_or_late)
        figures["doing"] = before


#: Elements of one message: counts are C ints, except in MPI 4.
LARGEST = 2**31 - 1


class MpiGroup(RankGroup):
    """A group (`RankGroup`) made of a communicator's ranks, with persistent messages.

    The communicator is of this group alone. Freeing it is up to the caller; `free` frees what was made from it. `sent`
    counts the bytes of messages that this rank has begun to send, without those of `share`, `gather` and `sum`.
    """

    def __init__(self, communicator: MPI.Intracomm) -> None:
        self.communicator = communicator
        self.sent = 0
        self.rank, self.size = communicator.rank, communicator.size
        self._subgroups: dict[tuple[int, ...], MpiGroup] = {}

    def send(self, to: int, array: np.ndarray, tag: int) -> PersistentMessage:
        message, nbytes = _message(self.communicator.Send_init, array, to, tag), array.nbytes

        def start() -> None:
            self.sent += nbytes
            message.start()

        return message._replace(start=start)

    def receive(self, source: int, array: np.ndarray, tag: int) -> PersistentMessage:
        return _message(self.communicator.Recv_init, array, source, tag)

    def subgroup(self, ranks: Sequence[int]) -> MpiGroup:
        key = tuple(ranks)
        if key not in self._subgroups:
            whole = self.communicator.Get_group()
            some = whole.Incl(ranks)
            self._subgroups[key] = MpiGroup(self.communicator.Create_group(some))
            some.Free()
            whole.Free()
        return self._subgroups[key]

    def share(self, value: Any) -> Any:
        return self.communicator.bcast(value)

    def gather(self, array: np.ndarray, gathered: np.ndarray) -> None:
        self.communicator.Allgather(array, gathered)

    def free(self) -> None:
        for group in self._subgroups.values():
            group.free()
            group.communicator.Free()
        self._subgroups.clear()


def _message(init: Callable[..., MPI.Prequest], array: np.ndarray, other: int, tag: int) -> PersistentMessage:
    flat = array.reshape(-1)
    requests = [init(flat[first : first + LARGEST], other, tag) for first in range(0, flat.size, LARGEST)]
    if len(requests) == 1:
        (only,) = requests
        return PersistentMessage(only.Start, only.Wait, only.Free)

    def free() -> None:
        for each in requests:
            each.Free()

    return PersistentMessage(lambda: MPI.Prequest.Startall(requests), lambda: MPI.Request.Waitall(list(requests)), free)


#: Most numbers that are shared at a time.
NUMBERS = 32


#: Longest sleep of a rank that waits for its lead, which can't ring it, and seconds before the first one.
SLEEP, PATIENCE = 2e-4, 1e-3


class Lead:
    """Decides for a replica. This one is for replicas of one rank, which decides for itself."""

    partition, partitions = 0, 1

    @property
    def leads(self) -> bool:
        """Whether this rank is the one that decides."""
        return self.partition == 0

    @property
    def bytes_moved(self) -> int:
        """Bytes that this rank has sent to others of its replica to compute together."""
        return 0

    def bind(self, link: WorkerLink, status: WorkerStatus) -> None:
        """Wait by means of `link` from now on, and count the time in a status."""

    def share(self, decide: Callable[[], Sequence[int]]) -> Sequence[int]:
        """Return, on all ranks, the result of `decide` on the lead; others don't call it."""
        return decide()

    def largest(self, number: int) -> int:
        """Return the largest of all ranks' numbers."""
        return number


class GroupLead(Lead):
    """Decides for the ranks of a group; all of them call each method in the same order."""

    def __init__(self, group: MpiGroup) -> None:
        self._group, self.partition, self.partitions = group, group.rank, group.size
        self._numbers = np.zeros(1 + NUMBERS, np.int64)

    @property
    def bytes_moved(self) -> int:
        return self._group.sent

    def bind(self, link: WorkerLink, status: WorkerStatus) -> None:
        self._waiting = Waiting(link, status, SLEEP)

    def share(self, decide: Callable[[], Sequence[int]]) -> Sequence[int]:
        """Return the lead's decision; other ranks sleep while they wait, which may take long."""
        numbers = self._numbers
        if self.leads:
            found = decide()
            numbers[0], numbers[1 : 1 + len(found)] = len(found), found
        request = self._group.communicator.Ibcast(numbers)
        if self.leads:
            request.Wait()
            return found
        self._wait(request)
        shared: list[int] = numbers[1 : 1 + int(numbers[0])].tolist()
        return shared

    def largest(self, number: int) -> int:
        gathered = np.empty(self.partitions, np.int64)
        self._wait(self._group.communicator.Iallgather(np.array([number]), gathered))
        return int(gathered.max())

    def _wait(self, request: MPI.Request) -> None:
        until = time.perf_counter() + PATIENCE
        while not request.Test():
            if time.perf_counter() > until:
                self._waiting.until(request.Test)
                return
