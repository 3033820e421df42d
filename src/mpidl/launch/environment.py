"""This process's environment: its launcher, scheduler, cores and threads. Imports neither MPI nor NumPy."""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from mpidl.errors import UsageError, printable, shown
from mpidl.launch import keeper, marks, shared_memory


class LauncherRank(NamedTuple):
    """The rank of this process among those started with it, and the environment variable with the size, if any."""

    rank: int
    size: int
    variable: str = ""


#: A launcher's variables with the rank, the size, and the number of ranks on this node.
LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
)

#: Launchers' variables with the rank among those on this node.
LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")

#: Schedulers, and the variable with a job's number.
SCHEDULERS = {
    "Slurm": "SLURM_JOB_ID", "PBS": "PBS_JOBID", "Flux": "FLUX_JOB_ID", "LSF": "LSB_JOBID", "Grid Engine": "JOB_ID",
    "Cobalt": "COBALT_JOBID",
}  # fmt: skip

#: First of Slurm's step numbers that stand for what srun did not start (batch script, interactive shell, ...).
SPECIAL_STEPS = 0xFFFFFFF0

#: Linux's list of InfiniBand devices, if there are any.
INFINIBAND = Path("/sys/class/infiniband")
#: Linux's list of Slingshot devices, if there are any.
SLINGSHOT = Path("/sys/class/cxi")
#: Variables with the segment sizes of UCX over TCP.
UCX_SEGMENTS = ("UCX_TCP_TX_SEG_SIZE", "UCX_TCP_RX_SEG_SIZE")

#: Open files that a rank may need: over TCP, a connection to each other rank.
OPEN_FILES = 65536

#: The last is JAX's.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "PJRT_NPROC")


def world(environment: Mapping[str, str] = os.environ) -> LauncherRank:
    """Return the rank and the size that the launcher put into the environment; rank 0 of 1 without a launcher.

    ``mpirun`` and ``mpiexec`` take precedence over Slurm, whose variables are also set for them inside an allocation.
    Slurm's variables are used only in a step that ``srun`` started: a batch script is one process, regardless of
    ``SLURM_NTASKS``. Raise UsageError if a launcher's variables are not numbers of a rank and a world.
    """
    for rank, size, _ in LAUNCHERS:
        if rank in environment and size in environment:
            return _world(environment, rank, size)
    if _in_step(environment):
        size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
        return _world(environment, "SLURM_PROCID", size)
    return LauncherRank(0, 1)


def _in_step(environment: Mapping[str, str]) -> bool:
    """Return whether srun has started this process."""
    step = environment.get("SLURM_STEP_ID", "")
    return "SLURM_PROCID" in environment and step.isdigit() and int(step) < SPECIAL_STEPS


def _world(environment: Mapping[str, str], rank: str, size: str) -> LauncherRank:
    ranks = number(environment, size, least=1)
    return LauncherRank(number(environment, rank, most=ranks - 1), ranks, size)


def number(
    environment: Mapping[str, str], variable: str, *, least: int = 0, most: int | None = None, default: int = 1
) -> int:
    """Return a launcher's variable as a number; `default` if it isn't set.

    Raise UsageError if it is not a number from `least` to `most`.
    """
    text = environment.get(variable, str(default))
    found = int(text) if re.fullmatch("[0-9]{1,9}", text) else -1
    if found < least or (most is not None and found > most):
        bounds = f">= {least}" if most is None else f"from {least} to {most}"
        expected = f"expected a number {bounds} as a launcher sets it, or unset it"
        raise UsageError(f"{variable}={shown(text)} in the environment: {expected}")
    return found


def under_foreign_launcher(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a launcher other than ``mpidl train -n`` has started this process and others."""
    return world(environment).size > 1 and marks.VARIABLE not in environment


def check_world(size: int, environment: Mapping[str, str] = os.environ) -> None:
    """Check that MPI.COMM_WORLD, of size `size`, has the ranks that the launcher started.

    Raises
    ------
    UsageError
        MPI sees a single rank although the launcher started more: this Python uses another MPI library.
    """
    started = world(environment)
    if size > 1 or started.size == 1:
        return
    if started.variable.startswith("SLURM") or (started.variable == "PMI_SIZE" and _in_step(environment)):
        remedy = "try `srun --mpi=pmix` (Open MPI) or `srun --mpi=pmi2` (MPICH, Intel MPI)"
    else:
        remedy = "start it with the mpirun of the MPI that this Python uses, or with `mpidl train -n`"
    raise UsageError(f"{started.variable}={started.size}, but MPI says that each of these ranks is alone: {remedy}")


def job(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the scheduler's number of the job that this process belongs to, ``"Slurm 4711"``; None without one."""
    for scheduler, variable in SCHEDULERS.items():
        if environment.get(variable):
            return f"{scheduler} {shown(printable(environment[variable]))}"
    return None


def threads(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of threads that this rank may use: the number of its own cores, or its share of the node's."""
    cores = len(os.sched_getaffinity(0))
    started = world(environment)
    if started.size > 1 and (bound := _bound(environment)):
        return min(cores, bound)
    return max(1, cores // _local_ranks(environment))


def _bound(environment: Mapping[str, str]) -> int:
    """Return the number of cores that the launcher gave to this rank alone; 0 if the ranks of a node share them.

    A rank is bound if it may run on fewer cores than its launcher.
    """
    if "SLURM_CPUS_PER_TASK" in environment and world(environment).variable.startswith("SLURM"):
        return number(environment, "SLURM_CPUS_PER_TASK", least=1)
    own = os.sched_getaffinity(0)
    try:
        of_launcher = os.sched_getaffinity(keeper.launcher())
    except OSError:
        return 0
    return len(own) if own < of_launcher else 0


def _local_ranks(environment: Mapping[str, str]) -> int:
    """Return the number of ranks on this node, or in the whole world if the environment doesn't have it."""
    size = world(environment).size
    if size == 1:
        return 1
    for rank, _, local in LAUNCHERS:
        if rank in environment and local in environment:
            return number(environment, local, least=1)
    per_node = environment.get("SLURM_STEP_TASKS_PER_NODE", environment.get("SLURM_TASKS_PER_NODE", ""))
    counts = [
        int(count)
        for count, nodes in re.findall(r"(\d{1,9})(?:\(x(\d{1,6})\))?", per_node)
        for _ in range(int(nodes or 1))
    ]
    node = number(environment, "SLURM_NODEID", default=0)
    return max(1, counts[node]) if node < len(counts) else size


def home() -> str:
    """Return this user's home directory or, if there is none, this process's own.

    Open MPI needs one, and loads the libraries and settings that it finds there: it can't be one where others write.
    """
    found = os.path.expanduser("~")
    return found if os.path.isabs(found) else str(shared_memory.own_directory())


def first_of_node(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process is the first of its job's on this node, or the launcher doesn't say."""
    return next((environment[each] for each in LOCAL_RANKS if each in environment), "0") == "0"


def prepare_rank() -> None:
    """Set what MPI reads when it starts, if a launcher has started this process; see `prepare_mpi`.

    One that is to be a keeper leaves that to the process that it keeps.
    """
    if _launched() and keeper.VARIABLE not in os.environ:
        _prepare_start()


def prepare_mpi(transport: str = "windows", distributed: bool = False, survives: bool = False) -> None:
    """Set the environment variables that MPI reads when it starts, except those that the user set.

    Where messages travel between nodes, of parameters or of samples (`distributed`), a thread of a worker keeps them
    moving while it computes. On a single node, threads of a process play the ranks of others that have died, one at a
    time, if the job `survives`. Otherwise only the thread that trains calls MPI: Open MPI 4 has no one-sided
    communication over Ethernet at a higher thread level, and MPICH takes twice as long for each call. On a node without
    InfiniBand, each of Open MPI's ranks would warn that UCX is of no use, and sleep for a second as its module for OFI
    finds no network. Where MPICH uses UCX over TCP, UCX's default segments of 64 KiB cost processor time. The limit of
    open files is raised from the 1024 that many systems set. A rank's files in shared memory go into its own directory;
    see `mpidl.launch.shared_memory`.
    """
    between_nodes = distributed or transport != "windows"
    several = _local_ranks(os.environ) < world().size
    level = "serialized" if survives and not several else "funneled"
    if transport == "messages" or (between_nodes and several):
        level = "multiple"
    os.environ.setdefault("MPI4PY_RC_THREAD_LEVEL", level)
    _prepare_start()


def _launched() -> bool:
    return _in_step(os.environ) or any(rank in os.environ for rank, _, _ in LAUNCHERS)


def _prepare_start() -> None:
    _allow_open_files()
    os.environ.setdefault("HOME", home())
    if _launched():
        shared_memory.claim()
    if without_ucx():
        os.environ.setdefault("OMPI_MCA_osc", "^ucx")
        if not SLINGSHOT.is_dir():
            os.environ.setdefault("OMPI_MCA_btl", "^ofi")
    if not INFINIBAND.is_dir() and "UCX_TLS" not in os.environ:  # Without TCP among these, UCX would warn.
        for variable in UCX_SEGMENTS:
            os.environ.setdefault(variable, "256k")


def without_ucx() -> bool:
    """Return whether UCX is of no use to Open MPI on this node, and the user hasn't chosen it."""
    return not INFINIBAND.is_dir() and "OMPI_MCA_pml" not in os.environ


def _allow_open_files() -> None:
    """Raise this process's limit of open files as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):  # macOS allows fewer than its hard limit.
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def prepare_libraries() -> None:
    """Set what maths libraries read when they are imported, unless the user did: above all their threads."""
    for variable in THREAD_VARIABLES:
        os.environ.setdefault(variable, str(threads()))
    # Numba's coloured messages have colorama write an escape sequence behind a rank's last line on stdout.
    os.environ.setdefault("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", "1")
