"""Whether a job outlives its processes."""

from __future__ import annotations

import os
from collections.abc import Collection

from mpi4py import MPI

from mpidl.algorithms import Exchange
from mpidl.config import Config
from mpidl.job import takeover
from mpidl.rma.windows import allocation_chosen
from mpidl.survival.survival import Mortal, Survival, fail
from mpidl.topology.roles import Roles

__all__ = ["begin", "fail", "obstacle"]


def begin(comm: MPI.Intracomm, roles: Roles, config: Config, nodes: Collection[int]) -> Mortal:
    """Return this process's part in what follows a death; collective."""
    watches = config.topology.survive == "auto" and len(nodes) == 1 and comm.size > 1 and hasattr(os, "pidfd_open")
    if not watches:
        return Mortal()
    survival = Survival(comm, roles, obstacle(config, roles) or _missing())
    if (cause := takeover.obstacle(config)) is not None:
        survival.fix_servers(cause)
    return survival


def _missing() -> str | None:
    """Return what the MPI library or its windows lack for a process to play several ranks; None if nothing."""
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        return "MPI has been begun for calls from one thread alone"
    if (chosen := allocation_chosen()) != "allocate":
        return f"MPIDL_WINDOWS: {chosen}, ranks don't share their memory"
    return None


def obstacle(config: Config, roles: Roles) -> str | None:
    """Return why no rank of a run can be taken over, as part of a line; None if some can."""
    name, topology = config.algorithm.name, config.topology
    if roles.intermediaries:
        return "workers push through other ranks"
    if topology.partitions > 1:
        return "replicas are cut"
    if config.run.deterministic:
        return "a deterministic run needs all of its workers"
    if topology.transport == "messages":
        return "ranks exchange by messages, and don't share memory"
    if config.algorithm.exchange is not Exchange.SERVERS:
        return f"{name} exchanges by {config.algorithm.exchange.value}"
    if config.algorithm.policy(1).awaited:
        return f"workers of {name} wait for each other's pushes"
    return None
