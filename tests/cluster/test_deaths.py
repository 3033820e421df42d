"""What kills a rank, a daemon, a launcher or a host: the job ends with an exit code that isn't 0, and a line says why."""

import os
import shlex
import signal
import subprocess
import sys

import pytest
from hosts import until
from jobs_on_hosts import last_step, processes_on, rank_of

#: A job that lasts until something ends it.
ENDLESS = ("--set=debug.gradient_seconds=0.05", "--set=run.epochs=10000")
#: By the way in which the job is started, what is killed: rank 3, a process of some name on a host, or a host.
VICTIMS = {
    "mpidl": {"rank": 3, "daemon": ("node2", "prted"), "launcher": ("head", "prterun"), "host": "node2"},
    "srun": {"rank": 3, "daemon": ("node2", "slurmstepd"), "launcher": ("node1", "srun"), "host": "node2"},
    "mpirun": {"rank": 3, "daemon": ("node2", "prted"), "launcher": ("node1", "prterun"), "host": "node2"},
}
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
        told, _ = self._process.communicate(timeout=60)
        return self._process.returncode, told

    def mend(self, host):
        self.hosts.start(host)


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

    def mend(self, host):
        self.hosts.start(host)
        self._cluster.start_host(host)


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


@pytest.mark.parametrize("transport", ["windows", "mixed"])
@pytest.mark.parametrize(("way", "victim"), [(way, victim) for way in VICTIMS for victim in VICTIMS[way]])
def test_a_job_that_is_hit_ends_with_an_error_and_a_line(start, counting, tmp_path, way, victim, transport):
    job = start(way, counting, *ENDLESS, f"--set=topology.transport={transport}")
    until(lambda: last_step(tmp_path / "runs" / "counting") > 0)
    what = VICTIMS[way][victim]
    if victim == "host":
        job.hosts.crash(what)
    else:
        for process in [rank_of(what, tmp_path)] if victim == "rank" else processes_on(job.hosts, *what):
            os.kill(process, signal.SIGKILL)
    code, told = job.end()
    print(told)
    if victim == "host":
        job.mend(what)
    until(lambda: not any(rank_of(number, tmp_path) for number in range(4)), 15)
    assert code != 0
