"""A lock on a run's directory, so that two runs never write in the same one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import struct
import sys
from functools import partial
from io import FileIO
from pathlib import Path

from mpidl.errors import MpidlError, UsageError
from mpidl.paths import existing, regular
from mpidl.storage.files import cannot_write

#: Errors of a file system without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
#: What the file says, or nothing that a crash has left of it; and more characters than that has.
_TEXT, _LONGEST = r"process \d+ on .*\n|\0*", 400
#: A request of `fcntl`, as struct flock has it, and the place of the lock's kind in it.
_FLOCK, _KIND = ("qqihh", 3) if sys.platform == "darwin" else ("hhqqi", 0)

#: Locks that this process holds: were it to open and close one's file once more, it would lose the lock.
_HELD: set[tuple[int, int]] = set()


def _identity(directory: Path) -> tuple[int, int]:
    """Return numbers that no other directory has."""
    found = directory.stat()
    return found.st_dev, found.st_ino


class Lock:
    """Locks a run's existing directory until it is closed or this process ends, however it ends.

    It is a POSIX lock on the file ``.lock``, which NFS and parallel file systems enforce across nodes. A process may
    hold several locks on one directory; closing the first releases them all. Raise UsageError if another process holds
    it, and MpidlError if the file can't be written.
    """

    def __init__(self, run: Path) -> None:
        self._run, self._place = run, run.absolute()
        path = run / ".lock"
        try:
            self._file = FileIO(path, "a+", opener=partial(regular, mode=0o622))
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise UsageError(f"{run}: in use by {self._text().strip() or 'another run'}") from None
                if error.errno not in _NO_LOCKS:
                    raise
            if not re.fullmatch(_TEXT, self._text()):
                raise OSError(errno.EINVAL, "not the lock of a run")
            _restrict(self._file.fileno())
            self._file.truncate(0)
            self._file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
            self._found = _identity(run)
            _HELD.add(self._found)
        except OSError as error:
            raise cannot_write(path, error) from error

    def check(self) -> None:
        """Raise MpidlError if the directory has been removed, or replaced by another, since it was locked."""
        try:
            found = _identity(self._place)
        except OSError as error:
            raise cannot_write(self._run, error) from error
        if found != self._found:
            raise MpidlError(f"{self._run}: can't be written: the directory was replaced during the run")

    def _text(self) -> str:
        self._file.seek(0)
        return self._file.read(_LONGEST).decode(errors="replace")

    def close(self) -> None:
        """Unlock the directory."""
        _HELD.discard(self._found)
        self._file.close()


def is_locked(run: Path) -> bool | None:
    """Return whether a process uses a run's directory; None if this user, or this file system, can't say."""
    try:
        if _identity(run) in _HELD:
            return True
        with open(run / ".lock", "r+b", opener=existing) as file:
            # From the beginning of the file to its end: all other numbers are 0.
            request = [0] * len(_FLOCK)
            request[_KIND] = fcntl.F_WRLCK
            found = fcntl.fcntl(file, fcntl.F_GETLK, struct.pack(_FLOCK, *request))
            return bool(struct.unpack(_FLOCK, found)[_KIND] != fcntl.F_UNLCK)
    except FileNotFoundError:
        return False
    except OSError:
        return None


def _restrict(descriptor: int) -> None:
    """Let only those read the file of a lock who can write it: readers, too, could lock it."""
    mode = os.fstat(descriptor).st_mode
    with contextlib.suppress(OSError):  # It is a colleague's.
        os.fchmod(descriptor, mode & ~0o444 | (mode & 0o222) << 1)
