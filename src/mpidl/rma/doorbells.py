"""Waking a sleeping rank of the same node.

A rank that sleeps and polls pays for every poll: on a virtual machine a wake-up costs 20 us, so that answering within
0.3 ms would take 7 % of a core. Ranks of one node therefore ring each other by a datagram on a Unix socket, which costs
about 2 us. Ranks of other nodes wake it by their messages, where these come over TCP; else it polls for them.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
from typing import Any

from mpi4py import MPI

from mpidl.rma.nodes import neighbours
from mpidl.rma.ownership import Freed, Owner
from mpidl.rma.sockets import Sockets, messages_wake


class Doorbells(Owner):
    """One socket for each rank of this node, in the kernel's abstract namespace (nothing to clean up on disk).

    Creation is collective over `comm`.

    Attributes
    ----------
    alone : bool
        Whether every rank of `comm` is on this node.
    messages_wake : bool
        Whether a message from a rank of another node wakes this one.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        token = comm.bcast(secrets.token_hex(8) if comm.rank == 0 else None)
        node = neighbours(comm)
        here = node.allgather(comm.rank)
        node.Free()
        self.alone = len(here) == comm.size
        self._addresses = {rank: f"\0mpidl-{token}-{rank}" for rank in here}
        self._socket: Any = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(self._addresses[comm.rank])
        comm.Barrier()
        self._sockets: Any = Sockets(watch=not self.alone)
        far = next((rank for rank in range(comm.size) if rank not in here), None)
        self.messages_wake = messages_wake(comm, far, self._sockets)
        if not self.messages_wake:
            self._sockets.close()
            self._sockets = Sockets(watch=False)

    def near(self, rank: int) -> bool:
        """Return whether `rank` is on this node."""
        return rank in self._addresses

    def ring(self, rank: int) -> None:
        """Wake `rank` if it is on this node. A full queue means that it has been rung already."""
        address = self._addresses.get(rank)
        if address is not None:
            with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
                self._socket.sendto(b"!", address)

    def clear(self) -> None:
        """Forget the rings so far. To miss none, look for work after this and before `sleep`."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._socket.recv(1)

    def sleep(self, seconds: float) -> bool:
        """Sleep until rung, or woken by a message, at most `seconds`; return whether that was so."""
        slept: bool = self._sockets.sleep(seconds, self._socket)
        return slept

    def free(self) -> None:
        """Close this rank's socket."""
        self._socket.close()
        self._sockets.close()
        self._socket = self._sockets = Freed("the doorbell")
