"""Decisions of a replica: the first of its ranks, the lead, decides for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from mpi4py import MPI

from mpidl.engines.mpi.group import MpiGroup
from mpidl.engines.mpi.waiting import Waiting
from mpidl.rma.worker import WorkerLink
from mpidl.transport.status import WorkerStatus

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
