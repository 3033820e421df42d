"""What killed jobs leave in shared memory and temporary directories, which the next start on the node removes.

A process's own directory in shared memory has its identity in its name. A note in it has what else the process uses
that would be left: the launcher's temporary directory, and files of MPI libraries that can't be made elsewhere. Of
files without a note, only those are removed that no living process can have made, or that are in shared memory and that
none has mapped: a rank that its MPI library ends by exit() takes its note with it, and no file of the library.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mpidl.errors import MpidlError
from mpidl.launch import keeper, shared_memory
from mpidl.launch.shared_memory import OF_LAUNCHER, own_directory, prefix, remove_at_exit, start

#: Names that Open MPI, MPICH, UCX and Intel MPI give to files in shared memory.
NAMES = re.compile(r"(sm_segment|osc_|open_mpi|vader_segment|mpich_|ucx_shm_|Intel_MPI_)")
#: Names of temporary directories of a job's own.
DIRECTORY_NAMES = re.compile(r"(ompi|prte|prted|prterun|pmix|mpidl)\.")
#: Where MPICH's launcher makes files, and their names.
TEMPORARY, TEMPORARY_NAMES = Path("/tmp"), re.compile("hydra_hwloc_xmlfile_")
#: What maps an MPI library, and how launchers' names begin.
LIBRARY, LAUNCHERS = "/libmpi", ("mpiexec", "mpirun", "hydra_", "prte")
#: Seconds after which any process that uses a file in shared memory has mapped it.
SETTLED = 5.0
#: The number of Linux's first space of process numbers, in which every process of a node is seen.
FIRST_SPACE = 0xEFFFFFFC


def note(temporary: str | None = None) -> None:
    """Note what this process uses so far; call again when there is more.

    A rank uses its launcher's temporary directory. A launcher gives its own, `temporary`. Raise MpidlError if the MPI
    library has taken another user's file for its shared memory.
    """
    directory = own_directory()
    launcher = keeper.launcher()
    given = os.environ.get(OF_LAUNCHER) if temporary is None else temporary
    text = json.dumps({
        "launcher": [launcher, start(launcher)] if temporary is None else None,
        "directories": [given] if given else [],
        "files": dict(_own_files()),
    })  # fmt: skip
    path = directory / "note"
    beside = directory / ".note"
    with contextlib.suppress(OSError):  # A job runs without.
        if not path.exists():
            remove_at_exit(path)
        beside.write_text(text)
        beside.rename(path)


def sweep() -> None:
    """Remove what dead processes of this user have left on this node, except what living ones use."""
    dead, unnoted = list(_dead()), list(_unnoted())
    if not dead and not unnoted:
        return
    living = list(_living())
    used = set().union(*(each.files for each in living))
    for directory, record in dead:
        directories = [*filter(_of_job, record["directories"]), str(directory)]
        # What is used is removed later, by the same note.
        if any(each in record["files"] or each.startswith(f"{of}/") for of in directories for each in used):
            continue
        for name, inode in record["files"].items():
            _remove(Path(name), inode)
        for each in directories:
            if os.path.isdir(each) and os.lstat(each).st_uid == os.getuid():
                shutil.rmtree(each, ignore_errors=True)
    oldest = min((each.start for each in living if each.uses_mpi), default=math.inf)
    for path, status in unnoted:
        # What maps a segment has had it open since it was made.
        late = path.parent == shared_memory.SHARED_MEMORY and time.time() - status.st_ctime > SETTLED
        if str(path) not in used and (late or status.st_ctime < oldest):
            _remove(path, status.st_ino)


def _own_files() -> Iterator[tuple[str, int]]:
    """Yield the files of MPI in shared memory, but outside this process's directory, that this process has mapped."""
    for name in _files(os.getpid()):
        path = Path(name)
        if path.parent == shared_memory.SHARED_MEMORY and NAMES.match(path.name):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                if status.st_uid != os.getuid():
                    raise MpidlError(
                        f"{path} belongs to another user (uid {status.st_uid}), and this job's MPI library has taken it"
                        " for its own: start the job again, and tell the node's administrator"
                    )
                yield name, status.st_ino


def _dead() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the directories of this user's dead processes on this node, with their notes."""
    names = re.compile(re.escape(prefix()) + r"(\d+)\.(\d+)\.")
    for path, status in _entries(shared_memory.SHARED_MEMORY, names):
        match = names.match(path.name)
        if match is None or not stat.S_ISDIR(status.st_mode) or _lives([int(match[1]), int(match[2])]):
            continue
        record: dict[str, Any] = {"launcher": None, "directories": [], "files": {}}
        with contextlib.suppress(OSError, ValueError):
            record = json.loads((path / "note").read_text())
        if record["launcher"] is None or not _lives(record["launcher"]):
            yield path, record


def _unnoted() -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the files of MPI libraries and launchers that aren't in a process's own directory.

    There are none where this process doesn't see all others that may use the same shared memory.
    """
    if os.stat("/proc/self/ns/pid").st_ino == FIRST_SPACE:
        for directory, names in ((shared_memory.SHARED_MEMORY, NAMES), (TEMPORARY, TEMPORARY_NAMES)):
            for path, status in _entries(directory, names):
                if stat.S_ISREG(status.st_mode):
                    yield path, status


def _entries(directory: Path, names: re.Pattern[str]) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield what is this user's in a directory, by the beginning of its name, with its status; no link is followed."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if names.match(entry.name):
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if status.st_uid == os.getuid():
                        yield Path(entry.path), status


def _remove(path: Path, inode: int) -> None:
    """Remove a file unless another has been made under its name."""
    with contextlib.suppress(OSError):
        if path.lstat().st_ino == inode:
            path.unlink()


def _of_job(directory: str) -> bool:
    return DIRECTORY_NAMES.match(os.path.basename(directory)) is not None


def _lives(identity: list[int]) -> bool:
    with contextlib.suppress(OSError):
        return start(identity[0]) == identity[1]
    return False


class _Process(NamedTuple):
    """A living process: the files that it has mapped or open, when it started (s since 1970), and if it uses MPI."""

    files: set[str]
    start: float
    uses_mpi: bool


def _living() -> Iterator[_Process]:
    """Yield the other processes of this user."""
    boot = float(Path("/proc/stat").read_text().partition("\nbtime ")[2].split()[0])
    for entry in Path("/proc").glob("[0-9]*"):
        process = int(entry.name)
        with contextlib.suppress(OSError):
            if process != os.getpid() and entry.stat().st_uid == os.getuid():
                files = _files(process)
                uses_mpi = (entry / "comm").read_text().startswith(LAUNCHERS) or any(LIBRARY in each for each in files)
                yield _Process(files, boot + start(process) / os.sysconf("SC_CLK_TCK"), uses_mpi)


def _files(process: int) -> set[str]:
    """Return the files that a process has mapped or open."""
    found = set()
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            found.add("/" + line.partition("/")[2])
        for link in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(os.readlink(link))
    return {each for each in found if not each.endswith(" (deleted)")}
