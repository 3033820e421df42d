"""What kills a daemon, a launcher or a host: the job ends with an exit code that isn't 0, and a line that says why."""

import os
import re
import shlex
import signal
import subprocess
import sys

import pytest
from hosts import until
from jobs_on_hosts import last_step, processes_on, rank_of

pytestmark = pytest.mark.long
#: A job that lasts until something ends it.
ENDLESS = ("--set=debug.gradient_seconds=0.05", "--set=run.epochs=10000")
#: By the way in which a job is started: the host and the name of the launcher, and of the daemon that it has elsewhere.
LAUNCHERS = {"mpidl": ("head", "prterun"), "srun": ("node1", "srun"), "mpirun": ("node1", "prterun")}
DAEMONS = {"mpidl": ("node2", "prted"), "srun": ("node2", "slurmstepd"), "mpirun": ("node2", "prted")}
#: How a job is started, what is hit, the transport, the exit code, and what the line has (a pattern); srun has lines of
#: its own, and a launcher may notice a lost host or end without a word.
CASES = [
    ("mpidl", "daemon", "mixed", 1, "the launcher's daemon there"),
    ("mpidl", "launcher", "windows", 1, "mpiexec was killed by SIGKILL"),
    ("mpidl", "host", "mixed", 1, "host node2 is lost|before its work was done: a rank died, or a host"),
    ("srun", "daemon", "mixed", None, "srun: error: "),
    ("mpirun", "daemon", "windows", 75, "the launcher's daemon there"),
    ("mpirun", "launcher", "mixed", 75, "mpiexec was killed by SIGKILL"),
]
SCRIPT = """#!/bin/bash
{command}
code=$?
echo "exit code $code"
exit $code
"""


class OnHosts:
    """A job that ``mpidl train -n`` has started by a remote shell."""

    def __init__(self, hosts, variables, train):
        self.hosts = hosts
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self._process = hosts.begin([*train, "-n", "4"], env=variables, **pipes)

    def end(self):
        told, _ = self._process.communicate(timeout=300)
        return self._process.returncode, told


class Batch:
    """A job of a batch script, by `srun` or by ``mpidl train -n``."""

    def __init__(self, cluster, directory, way, train):
        self.hosts, self._cluster, self._log = cluster.hosts, cluster, directory / "log"
        command = ["srun", "--mpi=pmix", *train] if way == "srun" else [*train, "-n", "4"]
        (directory / "script").write_text(SCRIPT.format(command=shlex.join(command)))
        words = ["sbatch", "--parsable", "--nodes=2", "--ntasks-per-node=2", "--no-requeue", "--output=log", "script"]
        self._number = cluster.run(*words)

    def end(self):
        until(lambda: self._cluster.job(self._number).get("JobState") not in ("PENDING", "RUNNING", "COMPLETING"))
        state, told = self._cluster.job(self._number)["JobState"], self._log.read_text()
        codes = [int(line.split()[-1]) for line in told.splitlines() if line.startswith("exit code")]
        return (codes or [0])[0], f"{state}\n{told}"


@pytest.fixture
def start(request, bare_environment, of_hosts, tmp_path, monkeypatch):
    """Starts ``mpidl train ARGUMENTS`` in a way, with two ranks on each of two hosts."""
    monkeypatch.chdir(tmp_path)

    def begin(way, *arguments):
        train = [sys.executable, "-P", "-m", "mpidl", "train", *map(str, arguments)]
        if way == "mpidl":
            hosts = request.getfixturevalue("two_hosts")
            return OnHosts(hosts, of_hosts(hosts), train)
        return Batch(request.getfixturevalue("cluster"), tmp_path, way, train)

    return begin


@pytest.mark.parametrize(("way", "hit", "transport", "expected", "line"), CASES)
def test_a_job_that_is_hit_ends_with_an_error_and_a_line(
    start, counting, tmp_path, way, hit, transport, expected, line
):  # fmt: skip
    job = start(way, counting, *ENDLESS, f"--set=topology.transport={transport}")
    until(lambda: last_step(tmp_path / "runs" / "counting") > 0)
    if hit == "host":
        job.hosts.crash("node2")
    else:
        for process in processes_on(job.hosts, *(LAUNCHERS if hit == "launcher" else DAEMONS)[way]):
            os.kill(process, signal.SIGKILL)
    code, told = job.end()
    if hit == "host":
        job.hosts.start("node2")
    assert code == expected if expected is not None else code > 2, told
    assert re.search(line, told), told
    assert told.count("\nmpidl: ") == (way != "srun"), told
    until(lambda: not any(rank_of(number, tmp_path) for number in range(4)))
