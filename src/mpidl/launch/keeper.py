"""The keeper of a rank's process: its parent, which stays when it dies.

Launchers end a job when one of their processes dies. Where others play a rank on whose process has died, the launcher
still sees the rank's keeper, which ends with the job. A keeper is this file, run by an interpreter that imports nothing
else.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Collection

#: Environment variable with the path of a file that a job's keepers lock together as long as their processes live.
VARIABLE = "MPIDL_KEEPER"
#: Environment variable of a keeper with the identity of the command that has started its job.
LAUNCHER = "MPIDL_KEEPS_FOR"
#: Exit code of a process that a signal has stopped after saving.
STOPPED = 75

#: The keeper's parent, and where this process says that it may die.
_launcher: int | None = None
_told: int | None = None


def keep(signals: Collection[int]) -> None:
    """Go on in a new process, and let this one be its keeper, if the launcher asks for that.

    The keeper passes the `signals`, which are blocked, on to the process, and ends as it does. If the process may die
    (`may_die`), the keeper ends when all others of the job have ended, too, whatever the process died of.
    """
    global _launcher, _told
    path = os.environ.pop(VARIABLE, None)
    if path is None:
        return
    lock = os.open(path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    said, say = os.pipe()
    _launcher = os.getppid()
    # The end of the process is a signal, too, which must not be missed.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    keeper = os.getpid()
    if process := os.fork():
        for file in (lock, said):
            os.set_inheritable(file, True)
        numbers = [str(int(each)) for each in (process, lock, said, *signals)]
        libraries = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PYTHONHOME") if name in os.environ}
        own = {LAUNCHER: os.environ.get("MPIDL_LAUNCHER", "")}
        os.execve(sys.executable, [sys.executable, "-I", "-S", __file__, *numbers], libraries | own)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.close(lock)
    os.close(said)
    _told = say
    _end_with(keeper)


def _end_with(keeper: int) -> None:
    """Let this process be killed when its keeper ends."""
    import ctypes

    set_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(1)


def may_die() -> None:
    """Tell this process's keeper, if it has one, that others of the job notice its death, and say what follows."""
    _tell(b"!")


def ends_job() -> None:
    """Tell this process's keeper, if it has one, that the job ends with this process."""
    _tell(b"x")


def _tell(word: bytes) -> None:
    if _told is not None:
        with contextlib.suppress(OSError):  # Something has closed all files.
            os.write(_told, word)


def launcher() -> int:
    """Return the number of the process that has launched this one."""
    return os.getppid() if _launcher is None else _launcher


def _keep(process: int, lock: int, said: int, *signals: int) -> None:
    """Wait for the end of a process, and end as it did."""
    while (ended := os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT | os.WNOHANG)) is None:
        number = signal.sigwait({signal.SIGCHLD, *signals})
        if number != signal.SIGCHLD:
            os.kill(process, number)
    # Those that watch the process find out by what it was killed as long as it isn't waited for.
    os.set_blocking(said, False)
    try:
        kept = os.read(said, 99).endswith(b"!")
    except BlockingIOError:
        kept = False
    exited = ended.si_code == os.CLD_EXITED
    if kept:
        fcntl.flock(lock, fcntl.LOCK_UN)
        fcntl.flock(lock, fcntl.LOCK_EX)
        os._exit(STOPPED if exited and ended.si_status == STOPPED else 0)
    if exited:
        os._exit(ended.si_status)
    _die_of(ended.si_status)


def _die_of(number: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    _keep(*map(int, sys.argv[1:]))
