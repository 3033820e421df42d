"""Waiting without taking a core from ranks that compute, while MPI makes progress."""

from __future__ import annotations

import ctypes
import math
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mpi4py import MPI

from mpidl.rma.doorbells import Doorbells
from mpidl.rma.verbs import RemoteMemory

#: Longest sleep in seconds of a rank that every other rank can ring, and of one that has to poll for other nodes.
RUNG_SLEEP = 5e-3
POLLING_SLEEP = 200e-6
#: Looks after the doorbell rang before the next sleep: some MPIs take in one message per call, so that an answer that
#: has arrived is seen only after the messages before it.
LOOKS = 2


class Backoff:
    """Waits between two looks at memory that other ranks write: spins a little, then sleeps until the doorbell rings.

    Every `pause` enters MPI once, so that one-sided operations on this rank and messages to it make progress over
    networks without progress of their own.

    It sleeps for at most `sleep` seconds, after spinning for `spin` seconds since `reset`; 0 if the ranks outnumber the
    cores. It leaves the `turn` to other threads of the process while it sleeps.
    """

    def __init__(
        self, comm: MPI.Comm, memory: RemoteMemory, doorbells: Doorbells, sleep: float, spin: float = 0.0,
        turn: Turn | None = None,
    ) -> None:  # fmt: skip
        self._comm, self._memory, self._doorbells, self._turn = comm, memory, doorbells, turn or Turn()
        self._sleep, self._spin = sleep, spin
        self._spin_until = 0.0
        self._looks = LOOKS

    def reset(self) -> None:
        """Say that there was work: the next pauses spin again."""
        self._looks = LOOKS
        if self._spin:
            self._spin_until = time.perf_counter() + self._spin

    def until(self, ready: Callable[[], bool]) -> None:
        """Pause until `ready()`."""
        self.reset()
        with self._memory.attended():
            while not ready():
                self.pause()

    def progress(self) -> bool:
        """Let MPI make progress without waiting; return whether anything has arrived."""
        self._turn.pass_on()
        served = self._memory.serve()
        return self._comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG) or served

    def pause(self, longest: float = math.inf) -> bool:
        """Let MPI make progress and wait a moment; to be called in a loop that looks for work each time.

        Sleep for at most `longest` seconds, not at all if that is negative. Return whether this rank slept the whole
        time, because no rank rang.
        """
        # A message may become visible only by a call that doesn't find it yet.
        if self.progress():
            return False
        if self._spin and time.perf_counter() < self._spin_until:
            return False
        if self._looks:
            self._looks -= 1
            return False
        self._turn.leave()
        rung = self._doorbells.sleep(max(0.0, min(self._sleep, longest)))
        self._turn.take()
        if not rung:
            return True
        self._doorbells.clear()
        self._looks = LOOKS
        return False


_PR_SET_TIMERSLACK = 29
_SYS_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
#: Seconds by which a sleep may end late; the default of Linux is 50 us.
SLACK = 1e-6
#: Seconds of processor time that a server asks for at a time; Linux 6.12 and newer run short requests sooner.
SLICE = 1e-4


def sharpen_sleeps() -> None:
    """Let short sleeps of this process end on time, where the system can do that."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, int(SLACK * 1e9), 0, 0, 0)
    except (AttributeError, OSError):
        return


def run_promptly() -> None:
    """Let this process run as soon as it wakes, even where others compute on every core; older systems ignore it."""
    number = _SYS_SCHED_SETATTR.get(os.uname().machine)
    if number is None:
        return
    # struct sched_attr: size, policy (normal), flags, nice, priority, then the slice as runtime, deadline, period.
    attributes = struct.pack("=IIQiIQQQ", 48, 0, 0, os.nice(0), 0, int(SLICE * 1e9), 0, 0)
    try:
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)
    except (AttributeError, OSError):
        return


def crowded(comm: MPI.Intracomm) -> bool:
    """Return whether the ranks of this node outnumber the cores that they may run on; collective over `comm`."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    cores = set().union(*node.allgather(os.sched_getaffinity(0)))
    ranks = node.size
    node.Free()
    return ranks > len(cores)


class Turn:
    """The turn to call MPI, in the order in which threads ask for it; the one that makes this object has it first."""

    def __init__(self) -> None:
        self._guard, self._taken = threading.Lock(), True
        self._asking: deque[threading.Lock] = deque()

    def take(self) -> None:
        """Wait for this thread's turn."""
        with self._guard:
            if not self._taken:
                self._taken = True
                return
            called = threading.Lock()
            called.acquire()
            self._asking.append(called)
        called.acquire()

    def leave(self) -> None:
        """Give the turn to the next thread."""
        with self._guard:
            if self._asking:
                self._asking.popleft().release()
            else:
                self._taken = False

    def pass_on(self) -> None:
        """Let others have their turns first, if they ask for it."""
        if self._asking:
            self.leave()
            self.take()

    @contextmanager
    def left(self) -> Iterator[None]:
        """Leave the turn to others while this thread waits in another way than by MPI."""
        self.leave()
        try:
            yield
        finally:
            self.take()
