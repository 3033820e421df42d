"""Waking a sleeping rank of the same node.

A rank that sleeps and polls pays for every poll: on a virtual machine a wake-up costs 20 us, so that answering within
0.3 ms would take 7 % of a core. Ranks of one node therefore ring each other by a datagram on a Unix socket, which costs
about 2 us. Nothing from another node wakes a rank, which polls for it.
"""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
from copy import copy
from pathlib import Path
from typing import Any

from mpi4py import MPI

from mpidl.launch.shared_memory import own_directory, remove_at_exit
from mpidl.rma.nodes import neighbours
from mpidl.rma.ownership import Freed, Owner

#: `select` takes file numbers below this; `poll` takes any, but sleeps for whole milliseconds.
SELECTABLE = 1024


class Doorbells(Owner):
    """One socket for each rank of this node, which only processes of this user can reach.

    Creation is collective over `comm`. `alone` says whether every rank of `comm` is on this node.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._path = own_directory() / secrets.token_hex(8)
        self._socket: Any = _bound(self._path)
        node = neighbours(comm)
        self._addresses = dict(node.allgather((comm.rank, str(self._path))))
        node.Free()
        self.alone = len(self._addresses) == comm.size
        comm.Barrier()

    def as_rank(self, rank: int) -> Doorbells:
        """Return the doorbells of another rank of this node, whose process has ended; its ringers find the new one."""
        twin, taken = copy(self), own_directory() / secrets.token_hex(8)
        twin._socket, twin._path = _bound(taken), Path(self._addresses[rank])
        twin._path.unlink(missing_ok=True)
        twin._path.parent.mkdir(mode=0o700, exist_ok=True)
        twin._path.symlink_to(taken)
        return twin

    def near(self, rank: int) -> bool:
        """Return whether `rank` is on this node."""
        return rank in self._addresses

    def ring(self, rank: int) -> None:
        """Wake `rank` if it is on this node. A full queue means that it has been rung already."""
        address = self._addresses.get(rank)
        if address is not None:
            with contextlib.suppress(BlockingIOError, ConnectionRefusedError, FileNotFoundError):
                self._socket.sendto(b"!", address)

    def clear(self) -> None:
        """Forget the rings so far. To miss none, look for work after this and before `sleep`."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._socket.recv(1)

    def sleep(self, seconds: float) -> bool:
        """Sleep until rung, at most `seconds`; return whether this rank was rung."""
        if self._socket.fileno() < SELECTABLE:
            return bool(select.select([self._socket], [], [], seconds)[0])
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(1e3 * seconds))

    def free(self) -> None:
        """Close this rank's socket."""
        self._socket.close()
        self._path.unlink(missing_ok=True)
        self._socket = Freed("the doorbell")


def _bound(path: Path) -> socket.socket:
    """Return a socket with a name, which is removed when this process exits."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    bound.bind(str(path))
    remove_at_exit(path)
    return bound
