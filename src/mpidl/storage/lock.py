"""A lock on a run's directory, so that two runs never write in the same one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from pathlib import Path

from mpidl.errors import UsageError
from mpidl.storage.files import cannot_write

#: Errors of a file system without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Lock:
    """Locks a run's existing directory until it is closed or this process ends, however it ends.

    It is a POSIX lock on the file ``.lock``, which NFS and parallel file systems enforce across nodes. A process may
    hold several locks on one directory; closing the first releases them all. Raise UsageError if another process holds
    it, and MpidlError if the file can't be written.
    """

    def __init__(self, run: Path) -> None:
        path = run / ".lock"
        try:
            self._file = os.fdopen(_open(path), "a+")
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    self._file.seek(0)
                    raise UsageError(f"{run}: in use by {self._file.read().strip() or 'another run'}") from None
                if error.errno not in _NO_LOCKS:
                    raise
            self._file.truncate(0)
            self._file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            self._file.flush()
        except OSError as error:
            raise cannot_write(path, error) from error

    def close(self) -> None:
        """Unlock the directory."""
        self._file.close()


def _open(path: Path) -> int:
    """Open the file of a lock, which only those can read who can write it: readers, too, could lock it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o622)
    mode = os.fstat(descriptor).st_mode
    with contextlib.suppress(OSError):  # It is a colleague's.
        os.fchmod(descriptor, mode & ~0o444 | (mode & 0o222) << 1)
    return descriptor
