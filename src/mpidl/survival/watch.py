"""Notice of the end of other processes of a node, and of workers that hang; both end processes that stand still."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

#: Seconds between two looks at a process that may be stopped, and the longest such time: then this one was stopped.
LOOK_EVERY, LATE = 1.0, 2.0
#: Seconds after which a process that a signal has stopped all the time is killed: it must not wake after others have
#: replaced it.
STOPPED_FOR = 3.0
#: struct pidfd_info of Linux 6.15: its size, the place of the exit status in it, and the request for that.
INFO, EXIT_STATUS, WANT_EXIT = 64, 60, 1 << 3
PIDFD_GET_INFO = (3 << 30) | (INFO << 16) | (0xFF << 8) | 11


class Watch:
    """Calls `ended(process, code)` in a thread of its own when another process of this node ends.

    The code is that of `subprocess.Popen.returncode`, or 0 if it is unknown. `pids` has the processes to watch by their
    numbers; those that have ended already are reported, too. Of the one that follows `own`, the process also looks
    every second whether a signal has stopped it. It is killed if `is_hopeless` returns so, given the process and
    whether it has stood still for some seconds.
    """

    def __init__(
        self,
        pids: Mapping[int, int],
        own: int,
        ended: Callable[[int, int], None],
        is_hopeless: Callable[[int, bool], bool] = lambda process, stopped: stopped,
    ) -> None:
        self._ended, self._own, self._pids, self._is_hopeless = ended, own, dict(pids), is_hopeless
        self._poll, self._processes = select.poll(), dict[int, int]()
        self._wake, self._awake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll.register(self._wake, select.POLLIN)
        self._gone = []
        for process, pid in pids.items():
            try:
                file = os.pidfd_open(pid)
            except ProcessLookupError:
                self._gone.append(process)
                continue
            self._processes[file] = process
            self._poll.register(file, select.POLLIN)
        # The process that is stopped, and its CPU clock; and since when.
        self._standing: tuple[int, int] | None = None
        self._since = self._looked = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="mpidl watch", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the thread, from another one."""
        os.write(self._awake, b"!")
        self._thread.join()
        for file in (*self._processes, self._wake, self._awake):
            os.close(file)

    def _run(self) -> None:
        for process in self._gone:
            self._report(process, 0)
        while True:
            for file, _ in self._poll.poll(1e3 * LOOK_EVERY):
                if file == self._wake:
                    return
                process = self._processes.pop(file)
                self._poll.unregister(file)
                code = _code_of(file, self._pids[process])
                os.close(file)
                self._report(process, code)
            self._look_at_next()

    def _report(self, process: int, code: int) -> None:
        """Report an end in a thread, since the receiver may wait for others, and keep watching."""
        threading.Thread(target=self._ended, args=(process, code), daemon=True).start()

    def _look_at_next(self) -> None:
        """Kill the next process if it will never continue."""
        now, before = time.monotonic(), self._looked
        if now - before < LOOK_EVERY / 2 or not self._processes:
            return
        self._looked = now
        following = sorted(self._processes.values(), key=lambda process: (process < self._own, process))
        pid = self._pids[following[0]]
        # One that is slowed down may be stopped at each look, and has computed in between.
        standing = (pid, cpu_clock(pid)) if is_stopped(pid) else None
        # After a late look this process was stopped, too, as when all jobs of the node were.
        if standing is None or standing != self._standing or now - before > LATE:
            self._standing, self._since = standing, now
        if self._is_hopeless(following[0], now - self._since > STOPPED_FOR):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped a process; not so if a debugger has."""
    return _stat(pid)[:1] == [b"T"]


def is_traced(pid: int) -> bool:
    """Return whether a debugger follows a process."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return b"\nTracerPid:\t0\n" not in file.read()
    except OSError:
        return False


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, also if its parent hasn't noticed."""
    return _stat(pid)[:1] in ([], [b"Z"], [b"X"])


def cpu_clock(pid: int) -> int:
    """Return the nanoseconds that a process has computed; 0 if it is gone."""
    with suppress(OSError):
        return time.clock_gettime_ns(~pid << 3 | 2)  # As clock_getcpuclockid(3) does.
    return 0


def _code_of(file: int, pid: int) -> int:
    """Return the code of a process that has ended, negative for a signal; 0 also if the system can't tell.

    Until its parent has asked for it, the status is that of a zombie.
    """
    status = _status_of_zombie(pid)
    if status is None:
        info = bytearray(struct.pack("Q", WANT_EXIT) + bytes(INFO - 8))
        with suppress(OSError):
            fcntl.ioctl(file, PIDFD_GET_INFO, info)
        (found,), (status,) = struct.unpack_from("Q", info), struct.unpack_from("i", info, EXIT_STATUS)
        status *= bool(found & WANT_EXIT)
    return os.waitstatus_to_exitcode(status)


def _stat(pid: int) -> list[bytes]:
    """Return the fields of a process's status from its state on; none if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2].split()
    except OSError:
        return []


def _status_of_zombie(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[-1]) if fields and fields[0] == b"Z" else None


#: A worker hangs if one of its batches takes `SECONDS`, and `TIMES` the duration of its longest batch so far.
SECONDS, TIMES = 300.0, 20
#: Batches that it must have computed before, since the first ones may compile, and that another worker computes
#: meanwhile. What holds up all of them, such as a file system, is no fault of one.
BATCHES = 20
#: Longest time between two looks at a worker, in seconds, unless this process itself stood still.
LONGEST_PAUSE = 2.5


class Pace:
    """The batches of a node's workers, in memory that their processes share.

    Parameters
    ----------
    rows : array (3, processes) of int64
        Of each process, the number of batches that it has begun, of those that it has completed, and the nanoseconds
        of the longest.
    own : int
        This process.
    hang_after : float, optional
        Seconds of a batch after which a worker hangs, if that isn't to depend on its other batches.
    """

    def __init__(self, rows: np.ndarray, own: int, hang_after: float | None = None) -> None:
        (self._begun, self._done, self._longest), self._own = rows, own
        self._hang_after = hang_after
        self._seen, self._since, self._looked, self._before = (-1, 0), 0.0, 0.0, self._done.copy()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Show that this process computes a batch in this context; not so in a debugger, where people take their time.

        It doesn't wait for other ranks there.
        """
        if _debugged():
            yield
            return
        own, began = self._own, time.monotonic_ns()
        self._begun[own] += 1
        try:
            yield
        finally:
            self._longest[own] = max(self._longest[own], time.monotonic_ns() - began)
            self._done[own] += 1

    def hangs(self, process: int, alive: Collection[int], now: float) -> bool:
        """Return whether a process hangs in a batch; called about every second, for the same process.

        `alive` has the processes that are, and `now` is in seconds of any clock.
        """
        begun, done, late = int(self._begun[process]), int(self._done[process]), now - self._looked > LONGEST_PAUSE
        self._looked = now
        if begun == done or self._seen != (process, begun) or late:
            self._seen, self._since, self._before = (process, begun), now, self._done.copy()
            return False
        late_after = self._hang_after or max(SECONDS, TIMES * 1e-9 * self._longest[process])
        if (done < BATCHES and self._hang_after is None) or now - self._since < late_after:
            return False
        others = [each for each in alive if each != process]
        wait = bool((self._begun == self._done)[others].all())
        return wait or bool((self._done - self._before).max() >= BATCHES)

    def longest(self, process: int) -> float:
        """Return the seconds of a process's longest batch."""
        return 1e-9 * int(self._longest[process])


def _debugged() -> bool:
    """Return whether a debugger of Python follows this thread."""
    monitoring: Any = getattr(sys, "monitoring", None)
    return sys.gettrace() is not None or (
        monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None
    )
