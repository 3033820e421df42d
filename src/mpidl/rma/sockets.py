"""Sleeping until something arrives on this process's connections to other hosts.

MPI moves messages only while it is called, and most libraries have no way to wait for one without calling all the time.
Over TCP their connections are sockets of this process, which the system can watch: a rank then sleeps until there is
something to move, costs nothing until then, and answers as soon as it wakes. Other networks wake nobody in this way.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import time

from mpi4py import MPI

#: Where the system lists a process's open files.
OPEN_FILES = "/proc/self/fd"
#: Messages that must wake a rank before it relies on that, seconds that it waits for each, and after which one is sent.
TRIALS, LIMIT, PAUSE = 3, 20e-3, 2e-3


class Sockets:
    """Watches this process's TCP connections for what arrives, and for room to send more.

    `sleep` returns at once if there was something since it was called last: look for it, and sleep again only when
    nothing is left. Connections that are made later are watched after the next `find`, or sleep in vain.

    Parameters
    ----------
    watch : bool
        If not, `sleep` sleeps as long as it may.
    """

    def __init__(self, watch: bool = True) -> None:
        self._epoll = select.epoll() if watch and sys.platform == "linux" else None
        self._open: list[str] = []
        self.find()

    def find(self) -> None:
        """Watch the connections that there are now."""
        if self._epoll is None:
            return
        names = os.listdir(OPEN_FILES)
        if names == self._open:
            return
        self._open = names
        for name in names:
            # Files may close meanwhile, and those watched already are refused.
            with contextlib.suppress(OSError):
                if _is_connection(int(name)):
                    self._epoll.register(int(name), select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)

    def fileno(self) -> int:
        """Return a file descriptor that can be read when there is something to do; -1 where that can't be told."""
        return -1 if self._epoll is None else self._epoll.fileno()

    def clear(self) -> None:
        """Forget what has happened so far."""
        while self._epoll is not None and self._epoll.poll(0):
            pass

    def sleep(self, seconds: float) -> bool:
        """Sleep until something happens, at most `seconds`; return whether something has happened."""
        if self._epoll is None:
            time.sleep(seconds)
            return False
        happened = bool(select.select([self._epoll], [], [], seconds)[0])
        if happened:
            self.clear()
        else:
            self.find()
        return happened

    def close(self) -> None:
        """Watch no longer."""
        if self._epoll is not None:
            self._epoll.close()


def _is_connection(number: int) -> bool:
    """Return whether an open file is a TCP connection."""
    if not os.readlink(f"{OPEN_FILES}/{number}").startswith("socket:"):
        return False
    opened = socket.socket(fileno=number)
    kind = opened.family, opened.type
    opened.detach()
    return kind[0] in (socket.AF_INET, socket.AF_INET6) and kind[1] == socket.SOCK_STREAM


def messages_wake(comm: MPI.Intracomm, far: int | None, sockets: Sockets) -> bool:
    """Return whether a message from another node wakes a rank that watches its connections; collective.

    Rank 0 tries it out for all.

    Parameters
    ----------
    comm : MPI.Intracomm
    far : int or None
        On rank 0: a rank of another node, None if there is none.
    sockets : Sockets
        This rank's.
    """
    far = comm.bcast(far)
    if far is None:
        return False
    woken = comm.rank == 0 and _woken_by(comm, far, sockets)
    if comm.rank == far:
        while comm.recv(source=0):
            time.sleep(PAUSE)
            comm.send(None, 0)
    return bool(comm.bcast(woken))


def _woken_by(comm: MPI.Intracomm, far: int, sockets: Sockets) -> bool:
    woken = True
    # The first message makes the connection.
    for trial in range(1 + TRIALS):
        arrival = comm.irecv(source=far)
        comm.send(True, far)
        # OFI's messages leave at the next call, as ranks make it before they sleep.
        comm.iprobe()
        sockets.clear()
        woken = sockets.sleep(LIMIT) or not trial
        arrival.wait()
        sockets.find()
        if not woken:
            break
    comm.send(False, far)
    return woken
