"""Notice of the end of other processes of a node, and an end to those that stand still."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

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
        """Report an end, and go on watching: who hears of it may wait for others."""
        threading.Thread(target=self._ended, args=(process, code), daemon=True).start()

    def _look_at_next(self) -> None:
        """Kill the next process if it will never go on."""
        now, before = time.monotonic(), self._looked
        if now - before < LOOK_EVERY / 2 or not self._processes:
            return
        self._looked = now
        following = sorted(self._processes.values(), key=lambda process: (process < self._own, process))
        pid = self._pids[following[0]]
        # One that is slowed down may be stopped at each look, and has computed in between.
        standing = (pid, cpu_clock(pid)) if is_stopped(pid) else None
        # A node whose jobs were all stopped goes on: this process was stopped, too.
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
