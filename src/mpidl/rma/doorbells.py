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
        self._socket: Any = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(str(self._path))
        remove_at_exit(self._path)
        node = neighbours(comm)
        self._addresses = dict(node.allgather((comm.rank, str(self._path))))
        node.Free()
        self.alone = len(self._addresses) == comm.size
        comm.Barrier()

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
