"""Whether a job outlives its processes."""

from __future__ import annotations

import os
from collections.abc import Collection

from mpi4py import MPI

from mpidl.config import Config
from mpidl.job import takeover
from mpidl.rma.windows import allocation_chosen
from mpidl.survival.survival import Mortal, Survival, fail
from mpidl.topology.roles import Roles
from mpidl.topology.takeover import Fixed

__all__ = ["begin", "fail"]


def begin(comm: MPI.Intracomm, roles: Roles, config: Config, nodes: Collection[int]) -> Mortal:
    """Return this process's part in what follows a death; collective."""
    watches = config.topology.survive == "auto" and len(nodes) == 1 and comm.size > 1 and hasattr(os, "pidfd_open")
    if not watches:
        return Mortal()
    return Survival(comm, roles, takeover.fixed(config, roles) | Fixed(_missing()), config.run.hang_after)


def _missing() -> str | None:
    """Return what the MPI library or its windows lack for a process to play several ranks; None if nothing."""
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        return "MPI has been begun for calls from one thread alone"
    if (chosen := allocation_chosen()) != "allocate":
        return f"MPIDL_WINDOWS: {chosen}, ranks don't share their memory"
    return None
