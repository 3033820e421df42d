"""Batch jobs of a real Slurm, by scripts that ``mpidl submit`` has written."""

import sys
from pathlib import Path

import pytest
from hosts import until
from jobs_on_hosts import EPOCHS, SAMPLES, counts, summary

JOBS = Path(__file__).parents[2] / "jobs"
#: Seconds of a gradient that make the counting job last for some seconds.
LASTING = ("--set", "debug.gradient_seconds=0.04")


@pytest.fixture
def submit(cluster, bare_environment, tmp_path, monkeypatch):
    """Submits a job of two ranks on each of two hosts; returns its number and its run's directory."""
    monkeypatch.chdir(tmp_path)

    def start(config, *words):
        command = [sys.executable, "-P", "-m", "mpidl", "submit", config, "--nodes=2", "--ranks-per-node=2"]
        told = cluster.run(*command, "--time=4:00", *words)
        number = told.split()[3]
        return number, tmp_path / "runs" / f"{config.stem}-{number}"

    yield start
    cluster.run("scancel", "--user=root", check=False)


@pytest.fixture
def told(tmp_path):
    """What a job has written."""
    return lambda number: "\n".join(path.read_text() for path in tmp_path.glob(f"runs/*-{number}.log"))


def finish(cluster, number, told):
    """Wait until a job ends; return how often Slurm has started it again."""
    ended = ("COMPLETED", "FAILED", "NODE_FAIL", "CANCELLED", "TIMEOUT")
    until(lambda: cluster.job(number).get("JobState") in ended, 60, 0.2)
    found = cluster.job(number)
    assert (found["JobState"], found["ExitCode"]) == ("COMPLETED", "0:0"), told(number)
    return int(found["Restarts"])


def test_a_script_that_was_submitted_trains_the_digits(cluster, submit, told):
    number, run = submit(JOBS / "digits.toml", "--set=run.epochs=20")
    assert finish(cluster, number, told) == 0
    assert summary(run)["test_accuracy"] > 0.93
    assert f"4 ranks on 2 hosts, Open MPI v5.0.11, job Slurm {number}" in told(number)


@pytest.mark.parametrize("mpi", ["pmix", "mpirun"])
def test_a_job_that_is_told_usr1_saves_and_goes_on(cluster, submit, told, counting, mpi):
    number, run = submit(counting, *LASTING, f"--mpi={mpi}")
    until(lambda: (run / "checkpoints" / "0").exists())
    cluster.run("scancel", "--signal=USR1", *["--batch"] * (mpi == "mpirun"), number)
    until(lambda: cluster.job(number).get("Restarts") == "1", 20)
    assert "stopping" in told(number)
    assert summary(run)["interrupted"]
    assert finish(cluster, number, told) == 1
    assert not summary(run)["interrupted"]
    assert counts(run) == [EPOCHS] * SAMPLES


def test_a_job_that_loses_a_node_goes_on(cluster, submit, told, counting):
    number, run = submit(counting, *LASTING)
    until(lambda: (run / "checkpoints" / "0").exists())
    cluster.hosts.crash("node2")
    until(lambda: cluster.job(number).get("Restarts") == "1", 60)
    cluster.hosts.start("node2")
    cluster.start_host("node2")
    assert finish(cluster, number, told) == 1
    assert counts(run) == [EPOCHS] * SAMPLES
