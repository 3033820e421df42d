"""A node's shared memory: free space, and a directory there for what this process and its MPI library make.

Every user may write in ``/dev/shm``, and some MPI libraries give their files names that others can guess. These
therefore lie in a directory that only this user can enter, and whose name can't be guessed. It begins with the identity
of its process, by which `mpidl.launch.leftovers` finds those of killed jobs.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import stat
from pathlib import Path

from mpidl.errors import MpidlError

SHARED_MEMORY = Path("/dev/shm")

#: Variable with the directory of Open MPI's windows.
OF_WINDOWS = "OMPI_MCA_osc_sm_backing_directory"
#: Variables with the directories of other files in shared memory: those of Open MPI 5 and 4, Intel MPI and UCX.
PLACES = (
    OF_WINDOWS, "OMPI_MCA_btl_sm_backing_directory", "OMPI_MCA_btl_vader_backing_directory", "I_MPI_SHM_FILE_PREFIX_4K",
    "UCX_POSIX_DIR",
)  # fmt: skip
#: A launcher's variable with a temporary directory of the job's own.
OF_LAUNCHER = "PMIX_SERVER_TMPDIR"


def check_free(directory: str | Path, needed: int, what: str, remedy: str) -> None:
    """Raise MpidlError unless a directory has `needed` bytes free, without which MPI libraries die or hang.

    The error names what needs the space and a remedy. A directory that can't be read is not checked.
    """
    try:
        status = os.statvfs(directory)
    except OSError:
        return
    free = status.f_bavail * status.f_frsize
    if free < needed:
        raise MpidlError(
            f"{what}: {math.ceil(needed / 1e6)} MB needed in {directory}, {free // 1_000_000} MB free: {remedy}"
        )


def of_windows() -> Path:
    """Return the directory in whose file system windows lie."""
    directory = Path(os.environ.get(OF_WINDOWS, SHARED_MEMORY))
    return SHARED_MEMORY if directory.parent == SHARED_MEMORY else directory


def claim() -> None:
    """Let MPI, which has not begun, make its files in this process's own directory, unless the user chose another."""
    directory = str(own_directory())
    for variable in PLACES:
        # What this process inherits is a directory of its launcher, which other nodes don't have.
        free = os.environ.get(variable, directory).startswith(f"{SHARED_MEMORY}/mpidl.")
        if free and (variable != "UCX_POSIX_DIR" or "UCX_TLS" not in os.environ):  # UCX would warn that it's of no use.
            os.environ[variable] = directory


@functools.cache
def own_directory() -> Path:
    """Return a directory that only this user can enter: in shared memory, or else in the temporary directory.

    It is removed when this process exits, if it is empty. Raise MpidlError if none can be made.
    """
    temporary = os.environ.get("TMPDIR", "/tmp")
    for place in (SHARED_MEMORY, temporary):
        with contextlib.suppress(OSError):
            directory = new_directory(place, f"{prefix()}{os.getpid()}.{start(os.getpid())}.")
            remove_at_exit(directory)
            return directory
    raise MpidlError(f"no directory can be made in {SHARED_MEMORY} or {temporary}: make room there")


def new_directory(place: str | Path, beginning: str) -> Path:
    """Make a directory with a random name after its beginning, which only this user can enter."""
    directory = Path(place, f"{beginning}{os.urandom(8).hex()}")
    directory.mkdir(0o700)
    return directory


def remove_at_exit(path: Path) -> None:
    """Remove a file or an empty directory when this process exits, after MPI is finalised; the latest one first.

    Handlers of `atexit` run before MPI is finalised, when a process that is killed still leaves files. Processes that
    are forked from this one remove nothing.
    """
    import ctypes

    library = ctypes.CDLL(None)
    library.strdup.restype = ctypes.c_void_p
    text = ctypes.c_void_p(library.strdup(os.fsencode(path)))  # It outlives the interpreter.
    library.__cxa_atexit(library.remove, text, None)
    os.register_at_fork(after_in_child=lambda: ctypes.memset(text, 0, 1))


def prefix() -> str:
    """Return how the names begin of directories of this user's processes that have numbers of one space."""
    return f"mpidl.{os.getuid()}.{os.stat('/proc/self/ns/pid').st_ino}."


def start(process: int) -> int:
    """Return the time when a process started, in ticks since boot; 0 if it has ended and its parent hasn't noticed.

    Raise OSError if there is none.
    """
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return 0 if fields[0] in "ZX" else int(fields[19])


def check_launcher() -> None:
    """Raise MpidlError if another user has made the temporary directory of this rank's launcher.

    Open MPI's mpirun uses a directory that is there already, and names it by the number of its process.
    """
    directory = os.environ.get(OF_LAUNCHER, "")
    try:
        owner, parent = os.lstat(directory).st_uid, os.stat(os.path.dirname(directory))
    except OSError:
        return
    if owner not in (0, os.getuid()) and parent.st_mode & stat.S_IWOTH:
        raise MpidlError(
            f"{OF_LAUNCHER}={directory} belongs to another user (uid {owner}), who could change this job: start it "
            "with `mpidl train -n`, or set TMPDIR to a directory of your own"
        )
