"""Sleeping until something arrives on this process's connections to other hosts.

MPI moves messages only while it is called, and most libraries have no way to wait for one without calling all the time.
Over TCP their connections are sockets of this process, which the system can watch: a rank then sleeps until there is
something to move, costs nothing until then, and answers as soon as it wakes. Other networks wake nobody in this way.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import stat
import sys
import termios
import time
from typing import Any

from mpi4py import MPI

#: Where the system lists a process's open files.
OPEN_FILES = "/proc/self/fd"
#: Sleeps that end at once, one after the other, before ranks look whether anybody reads what has arrived.
PATIENCE = 500
#: Messages that a rank is sent to find out whether they wake it, and how many of them need not; seconds of a sleep in
#: which one may come, and after which one is sent.
TRIALS, MISSED, LIMIT, PAUSE = 3, 1, 20e-3, 2e-3
#: Least seconds from one look for new connections to the next, which lists all open files, and the largest part of a
#: rank's time that it may take.
FIND_EVERY, FIND_SHARE = 20e-3, 0.02
#: The numbers of files that `select.select` takes are below this.
SELECTABLE = 1024


class Sockets:
    """Watches this process's TCP connections for what arrives, and for room to send more.

    `sleep` returns at once as long as a connection has something to read, of which MPI may take a part in a call, and
    if anything has happened since the last sleep or `clear`. So does the sleep after that, once, if nothing more has
    happened: the last call of MPI may have read what completes a request that was tested before it, and only another
    look shows that. Connections that are made later are watched after the next `find`, or soon after a sleep in vain.

    Parameters
    ----------
    watch : bool
        If not, `sleep` sleeps as long as it may.
    """

    def __init__(self, watch: bool = True) -> None:
        self._watches = watch and sys.platform == "linux"
        if self._watches:
            # What can be read, until it is read; what has happened since it was asked for last.
            self._unread, self._news, self._both = select.epoll(), select.epoll(), select.epoll()
            for each in (self._unread, self._news):
                self._both.register(each.fileno(), select.EPOLLIN)
        self._open: list[str] = []
        # The inode of each open file: another file may take its number later.
        self._inodes: dict[str, int] = {}
        # What each connection has had to read at so many sleeps in a row.
        self._left: dict[int, int] = {}
        self._sleeps = 0
        # Whether a look has followed that on all that had happened.
        self._settled = True
        self._find_after = 0.0
        self.find()

    def find(self) -> None:
        """Watch the connections that there are now."""
        if not self._watches:
            return
        started = time.perf_counter()
        names = os.listdir(OPEN_FILES)
        if names != self._open:
            before, self._open, self._inodes = self._inodes, names, {}
            for name in names:
                # Files may close meanwhile.
                with contextlib.suppress(OSError):
                    found = os.fstat(int(name))
                    self._inodes[name] = found.st_ino
                    if stat.S_ISSOCK(found.st_mode) and found.st_ino != before.get(name):
                        self._watch(int(name))
        ended = time.perf_counter()
        self._find_after = ended + max(FIND_EVERY, (ended - started) / FIND_SHARE)

    def _watch(self, number: int) -> None:
        """Watch a socket if it is a connection."""
        opened = socket.socket(fileno=number)
        kind = opened.family, opened.type
        opened.detach()
        if kind[0] in (socket.AF_INET, socket.AF_INET6) and kind[1] == socket.SOCK_STREAM:
            self._unread.register(number, select.EPOLLIN)
            self._news.register(number, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)

    def clear(self) -> None:
        """Forget what has happened so far, but for what is unread."""
        while self._watches and self._news.poll(0):
            pass
        self._settled = True

    def sleep(self, seconds: float, *others: Any) -> bool:
        """Sleep until something happens, at most `seconds`; return whether something has happened.

        Parameters
        ----------
        seconds : float
        *others
            Files that may be read then, too.
        """
        watched = [self._both, *others] if self._watches else list(others)
        if not watched:
            time.sleep(seconds)
            return False
        happened = _readable(watched, 0.0)
        if happened:
            self._look_for_idle()
        else:
            self._sleeps = 0
            if not self._settled:
                self._settled = True
                return True
            happened = _readable(watched, seconds)
        if self._watches and self._both in happened:
            self.clear()
            self._settled = False
        elif not happened and time.perf_counter() > self._find_after:
            self.find()
        return bool(happened)

    def _look_for_idle(self) -> None:
        """Watch no longer what somebody else reads, or nobody, so that ranks don't stay awake for it."""
        self._sleeps += 1
        if self._sleeps % PATIENCE or not self._watches:
            return
        before, self._left = self._left, {}
        for number, _ in self._unread.poll(0):
            # Files may close meanwhile.
            with contextlib.suppress(OSError):
                self._left[number] = _unread(number)
                if self._sleeps > PATIENCE and before.get(number) == self._left[number]:
                    self._unread.unregister(number)

    def close(self) -> None:
        """Watch no longer."""
        if self._watches:
            for each in (self._both, self._unread, self._news):
                each.close()


def _readable(files: list[Any], seconds: float) -> list[Any]:
    """Return the files that can be read, as soon as one can, or none after so many seconds."""
    if all(each.fileno() < SELECTABLE for each in files):
        return select.select(files, [], [], seconds)[0]
    # A process with so many files may poll, but not for less than a millisecond.
    poll, numbered = select.poll(), {each.fileno(): each for each in files}
    for number in numbered:
        poll.register(number, select.POLLIN)
    return [numbered[number] for number, _ in poll.poll(1e3 * seconds)]


def _unread(number: int) -> int:
    """Return how many bytes a connection has to read."""
    return int.from_bytes(fcntl.ioctl(number, termios.FIONREAD, bytes(4)), sys.byteorder)


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
    missed = 0
    # The first message makes the connection.
    for trial in range(1 + TRIALS):
        _let_idle(comm, sockets)
        arrival = comm.irecv(source=far)
        comm.send(True, far)
        # OFI's messages leave at the next call, as ranks make it before they sleep.
        comm.iprobe()
        sockets.clear()
        woken = arrived = False
        # A sleep in vain means nothing while the message is still to come: on a busy node its sender may be slow.
        while not woken and not arrived:
            woken = sockets.sleep(LIMIT)
            arrived, _ = arrival.test()
        if not arrived:
            arrival.wait()
        sockets.find()
        missed += trial > 0 and not woken
        if missed > MISSED:
            break
    comm.send(False, far)
    return missed <= MISSED


def _let_idle(comm: MPI.Intracomm, sockets: Sockets) -> None:
    """Let MPI read all that is there; what is left then, nobody reads, and is no longer watched."""
    for _ in range(3 * PATIENCE):
        if not sockets.sleep(0):
            break
        comm.iprobe()
