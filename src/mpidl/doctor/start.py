"""What it costs to start a rank on this file system, by a process that imports what a worker does, and counts.

Run as a script by that process, this file imports nothing of the package before it counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from mpidl.doctor.examination import Finding

#: File systems of one node; the others are assumed to be shared by many.
LOCAL = {"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "squashfs", "tmpfs", "xfs", "zfs"}
MOUNTS = Path("/proc/self/mounts")
#: Seconds of a path call from which on it counts as slow: on a file system of a node's own it takes some microseconds.
SLOW = 100e-6
#: Path calls per second that the metadata server of a shared file system answers.
ANSWERS = 30_000
#: Seconds after which the process is ended.
PATIENCE = 18.0


class Start(NamedTuple):
    """What a process has measured: seconds, processor seconds, modules, path calls, and the seconds of one of these."""

    seconds: float
    processor: float
    modules: int
    calls: int
    call: float


def start() -> Finding:
    """Find what it costs to start a rank."""
    from mpidl.doctor.cuda import LAUNCHERS
    from mpidl.doctor.examination import Finding, Verdict

    kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    kept |= {"MPI4PY_RC_INITIALIZE": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    remedy = "`mpidl submit --env FILE` unpacks an archive of the environment on each node, from which its ranks start"
    try:
        told = subprocess.check_output(
            [sys.executable, "-P", __file__],
            env=kept,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        return Finding(f"importing what a worker needs takes more than {PATIENCE:g} s", Verdict.WARNING, remedy)
    except subprocess.CalledProcessError as error:
        return Finding(error.stderr.decode(errors="replace").strip().rpartition("\n")[2], Verdict.FAILED)
    return described(Start(*json.loads(told)), file_system(Path(sys.prefix)), remedy)


def described(found: Start, kind: str, remedy: str) -> Finding:
    """Return the finding for a file system of a kind."""
    from mpidl.doctor.examination import Finding, Verdict

    slow, shared = found.call > SLOW, kind not in LOCAL
    text = (
        f"{found.modules} modules in {found.seconds:.1f} s, {found.processor:.1f} s of processor time; {found.calls} "
        f"path calls of Python, of {1e6 * found.call:.0f} us each, on {kind}"
    )
    if not (slow or shared):
        return Finding(text)
    crowd = (
        f"1000 ranks wait {1000 * found.calls / ANSWERS:.0f} s for a file system that answers {ANSWERS} calls a second"
    )
    return Finding(text, Verdict.WARNING if slow else Verdict.OK, f"{crowd}: {remedy}")


def file_system(path: Path) -> str:
    """Return the type of a path's file system, or "an unknown file system"."""
    try:
        mounts = [line.split()[1:3] for line in MOUNTS.read_text().splitlines()]
    except OSError:
        mounts = []
    own = [(len(place), kind) for place, kind in mounts if path.resolve().is_relative_to(place)]
    return max(own, default=(0, "an unknown file system"))[1]


def measure() -> Start:
    """Import what a worker does, load a compiled function, and return what it took."""
    import importlib._bootstrap_external

    importing: Any = importlib._bootstrap_external
    waited: list[float] = []
    opened, own = 0, importing._path_stat

    def heard(event: str, arguments: Any) -> None:
        nonlocal opened
        opened += event in ("open", "os.listdir")

    def stat(path: Any) -> Any:
        began = time.perf_counter()
        try:
            return own(path)
        finally:
            waited.append(time.perf_counter() - began)

    # No audit event tells of stat, by which Python looks for modules.
    importing._path_stat = stat
    sys.addaudithook(heard)
    began = time.perf_counter()
    import mpidl.runs.ranks  # noqa: F401 (is measured)
    from mpidl.rules import Adagrad

    Adagrad().warm("float32")
    seconds = time.perf_counter() - began
    return Start(seconds, time.process_time(), len(sys.modules), opened + len(waited), sum(waited) / len(waited))


if __name__ == "__main__":
    print(json.dumps(measure()))
