"""The ranks of a replica as ranks of a communicator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from mpidl.partition.group import PersistentMessage, RankGroup

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
