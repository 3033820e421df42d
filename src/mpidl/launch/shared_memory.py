"""A node's shared memory and temporary directories: free space, and removal of what killed jobs left there.

MPI libraries name these files and remove them, except when a whole job is killed. Each rank therefore notes its job's
files on this node in a small file of its own, beside the shared memory. The next start reads the notes of all ranks of
this user, and removes what belonged to the dead.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mpidl.errors import MpidlError

SHARED_MEMORY = Path("/dev/shm")

#: Names that Open MPI, MPICH, UCX and Intel MPI give to files in shared memory.
NAMES = re.compile(r"(sm_segment|osc_|open_mpi|vader_segment|mpich_|ucx_shm_|Intel_MPI_)")
#: Open MPI's number of the job, in names such as sm_segment.HOST.USER.e2dd0001.RANK and osc_sm.HOST.e2dd0001.CONTEXT.
JOB = re.compile(r"(?:sm_segment|osc_[a-z]+)\..*\.([0-9a-f]{5,8})\.")
#: A launcher's variable with a temporary directory of the job's own, and the names of such directories.
DIRECTORY = "PMIX_SERVER_TMPDIR"
DIRECTORY_NAMES = re.compile(r"(ompi|prte|prted|prterun|pmix)\.")
#: Names of the directories of Open MPI's mpirun, with the number of its process.
OF_LAUNCHER = re.compile(r"ompi\.(\d+)|(?:prte|prterun)\..+\.(\d+)\.\d+")


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


def note() -> None:
    """Note the files of this rank's job on this node so far; call again when there are more.

    The note is removed when this process ends normally.
    """
    files = sorted(each for each in _mapped("self") if Path(each).parent == SHARED_MEMORY)
    jobs = sorted({match[1] for name in files if (match := JOB.match(Path(name).name))})
    text = json.dumps({
        "node": _node(),
        "processes": [_identity(os.getpid()), _identity(os.getppid())],
        "files": {name: os.stat(name).st_ino for name in files if os.path.exists(name)},
        "jobs": jobs,
        "directories": [os.environ[DIRECTORY]] if os.environ.get(DIRECTORY) else [],
    })  # fmt: skip
    path = SHARED_MEMORY / f"{_prefix()}{os.getpid()}"
    first = not path.exists()
    beside = path.with_name(f".{path.name}")
    try:
        beside.write_text(text)
        beside.rename(path)
    except OSError:  # a job runs without
        _remove(beside)
        return
    if first:
        atexit.register(path.unlink, missing_ok=True)


def sweep() -> None:
    """Remove unused files that dead jobs of this user have noted on this node, and their notes."""
    dead = [(path, record) for path, record in _notes() if not any(map(_lives, record["processes"]))]
    if not dead:
        return
    used = set().union(*map(_mapped, _own_processes()))
    for path, record in dead:
        for name in _files(record):
            if name not in used:
                _remove(Path(name))
        for name in record["directories"]:
            if DIRECTORY_NAMES.match(Path(name).name) and not any(each.startswith(f"{name}/") for each in used):
                shutil.rmtree(name, ignore_errors=True)
        _remove(path)


def of_launchers(temporary: str) -> dict[int, Path]:
    """Return the directories of Open MPI's mpirun in a temporary directory, by the number of its process.

    An mpirun fails if a killed one with the same process number has left its directory.
    """
    found = {}
    with contextlib.suppress(OSError):
        for path in Path(temporary).iterdir():
            if match := OF_LAUNCHER.fullmatch(path.name):
                found[int(match[1] or match[2])] = path
    return found


def _notes() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the notes that ranks of this user have written on this node."""
    node = _node()
    for path in SHARED_MEMORY.glob(f"{_prefix()}*"):
        try:
            if path.lstat().st_uid != os.getuid():
                continue
            record = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if record["node"] == node:
            yield path, record


def _files(record: dict[str, Any]) -> Iterator[str]:
    """Yield the files in shared memory that belonged to a job, including those of ranks without a note."""
    for name, inode in record["files"].items():
        with contextlib.suppress(OSError):
            if os.stat(name).st_ino == inode:
                yield name
    for path in SHARED_MEMORY.iterdir() if record["jobs"] else ():
        match = JOB.match(path.name)
        if match and match[1] in record["jobs"]:
            yield str(path)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.lstat().st_uid == os.getuid():
            path.unlink()


def _prefix() -> str:
    return f"mpidl.{os.getuid()}."


def _node() -> list[Any]:
    """Return what identifies this node since its boot, and the space of process numbers in it."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return [boot, os.stat("/proc/self/ns/pid").st_ino]


def _identity(process: int) -> list[int]:
    """Return a process's number and start time, together unique; the time is 0 if it has ended."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    state, start = fields[0], int(fields[19])
    return [process, 0 if state in "ZX" else start]


def _lives(identity: list[int]) -> bool:
    try:
        return _identity(identity[0]) == identity
    except OSError:
        return False


def _own_processes() -> Iterator[str]:
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if entry.stat().st_uid == os.getuid():
                yield entry.name


def _mapped(process: str) -> set[str]:
    """Return MPI's files that a process has mapped or open: in shared memory or a job's directory."""
    found = set()
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            found.add(line.partition("/")[2])
        for link in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(os.readlink(link).removeprefix("/"))
    paths = {Path("/", each) for each in found if each and not each.endswith(" (deleted)")}
    return {
        str(path) for path in paths
        if (path.parent == SHARED_MEMORY and NAMES.match(path.name))
        or any(DIRECTORY_NAMES.match(each.name) for each in path.parents)
    }  # fmt: skip
