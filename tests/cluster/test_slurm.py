"""Batch jobs of a real Slurm, by scripts that ``mpidl submit`` has written."""

import re
import shutil
import sys
from pathlib import Path

import pytest
from hosts import until
from jobs_on_hosts import EPOCHS, SAMPLES, counts, last_step, summary

JOBS = Path(__file__).parents[2] / "jobs"
#: Seconds of a gradient that make the counting job last for some seconds.
LASTING = ("--set", "debug.gradient_seconds=0.08")


@pytest.fixture
def submit(cluster, bare_environment, tmp_path, monkeypatch):
    """Submits a job of two ranks on each of two hosts; returns its number and its run's directory."""
    monkeypatch.chdir(tmp_path)

    def start(config, *words, **variables):
        command = [sys.executable, "-P", "-m", "mpidl", "submit", config, "--nodes=2", "--ranks-per-node=2"]
        told = cluster.run(*command, "--time=4:00", *words, **variables)
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
    until(lambda: cluster.job(number).get("JobState") in ended, every=0.2)
    found = cluster.job(number)
    assert (found["JobState"], found["ExitCode"]) == ("COMPLETED", "0:0"), told(number)
    return int(found["Restarts"])


@pytest.mark.long
def test_a_script_that_was_submitted_trains_the_digits(cluster, submit, told):
    number, run = submit(JOBS / "digits.toml", "--set=run.epochs=8")
    assert finish(cluster, number, told) == 0
    assert summary(run)["test_accuracy"] > 0.9


@pytest.mark.parametrize("mpi", ["pmix", pytest.param("mpirun", marks=pytest.mark.long)])
def test_a_job_that_is_told_usr1_saves_and_goes_on(cluster, submit, told, counting, mpi):
    number, run = submit(counting, *LASTING, f"--mpi={mpi}")
    until(lambda: last_step(run) > 0)
    cluster.run("scancel", "--signal=USR1", *["--batch"] * (mpi == "mpirun"), number)
    until(lambda: cluster.job(number).get("Restarts") == "1")
    assert f"4 ranks on 2 hosts, Open MPI v5.0.11, job Slurm {number}" in told(number)
    assert "stopping" in told(number)
    assert summary(run)["interrupted"]
    # A node that is still ending the first start may refuse the launcher's daemon: the script then asks once more.
    assert 1 <= finish(cluster, number, told) <= 1 + (mpi == "mpirun")
    assert not summary(run)["interrupted"]
    assert counts(run) == [EPOCHS] * SAMPLES


@pytest.mark.long
@pytest.mark.parametrize("mpi", ["pmix", "mpirun"])
def test_a_script_that_is_told_usr1_saves_and_goes_on(cluster, submit, told, tmp_path, mpi):
    pytest.importorskip("torch")
    shutil.copy(JOBS.parent / "docs" / "examples" / "digits_mpidl.py", tmp_path)
    number, _ = submit(Path("digits_mpidl.py"), f"--mpi={mpi}")
    run, saved = tmp_path / "runs" / "run", tmp_path / "digits.pt"
    until(lambda: last_step(run) >= 0)
    cluster.run("scancel", "--signal=USR1", *["--batch"] * (mpi == "mpirun"), number)
    until(lambda: cluster.job(number).get("Restarts") == "1")
    assert summary(run)["interrupted"], told(number)
    assert not saved.exists()
    assert finish(cluster, number, told) >= 1
    assert not summary(run)["interrupted"]
    assert [path.name for path in (tmp_path / "runs").iterdir() if path.is_dir()] == ["run"]
    accuracies = re.findall(r"^test accuracy (\S+)$", told(number), re.MULTILINE)
    assert len(accuracies) == 1
    assert float(accuracies[0]) > 0.93
    assert saved.exists()


@pytest.mark.long
def test_a_job_that_loses_a_node_goes_on_with_the_other(cluster, submit, told, counting):
    number, run = submit(counting, *LASTING, "--mpi=pmix", "--ranks-per-node=3", SBATCH_NO_KILL="set")
    until(lambda: last_step(run) > 0)
    cluster.hosts.crash("node2")
    try:
        assert finish(cluster, number, told) == 0
    finally:
        cluster.hosts.start("node2")
        cluster.start_host("node2")
    assert "3 ranks on 1 host" in told(number)
    assert counts(run) == [EPOCHS] * SAMPLES


@pytest.mark.long
def test_a_job_that_loses_a_node_is_queued_again(cluster, submit, told, counting):
    number, run = submit(counting, *LASTING, "--mpi=mpirun")
    until(lambda: last_step(run) > 0)
    cluster.hosts.crash("node2")
    try:
        # An attempt to start again on the host that is lost may fail before this has looked.
        until(lambda: int(cluster.job(number).get("Restarts", 0)) >= 1)
    finally:
        cluster.hosts.start("node2")
        cluster.start_host("node2")
    # A host that has just come back may fail to start ranks, and the job is queued again, maybe a few times.
    assert finish(cluster, number, told) >= 1
    assert counts(run) == [EPOCHS] * SAMPLES


@pytest.mark.long
def test_two_jobs_on_the_same_nodes_do_not_disturb_each_other(cluster, submit, told, counting):
    jobs = [submit(counting, *LASTING) for _ in range(2)]
    until(lambda: all(last_step(run) > 0 for _, run in jobs))
    assert [cluster.job(number)["NodeList"] for number, _ in jobs] == ["node[1-2]"] * 2
    for number, run in jobs:
        assert finish(cluster, number, told) == 0
        assert counts(run) == [EPOCHS] * SAMPLES


@pytest.fixture
def srun(cluster, bare_environment, tmp_path, monkeypatch):
    """Starts ``mpidl ARGUMENTS`` on two ranks of each host; returns the exit code, and the lines of mpidl."""
    monkeypatch.chdir(tmp_path)

    def start(mpi, *arguments):
        words = ["srun", f"--mpi={mpi}", "--nodes=2", "--ntasks-per-node=2", sys.executable, "-P", "-m", "mpidl"]
        done = cluster.attempt(*words, *arguments)
        return done.returncode, [line for line in done.stderr.splitlines() if line.startswith("mpidl: ")]

    return start


def test_a_launcher_that_does_not_fit_the_mpi_library_is_named_in_a_line(srun):
    code, (line,) = srun("pmi2", "train", JOBS / "digits.toml")
    assert code == 2
    assert line.startswith("mpidl: PMI_SIZE=4, but MPI says that each of these ranks is alone: try `srun --mpi=pmix`")


def test_a_configuration_that_one_host_lacks_is_named_with_the_host(srun, cluster):
    cluster.hosts.run(["cp", JOBS / "digits.toml", "/var/tmp/digits.toml"], host="node1")
    line = "mpidl: /var/tmp/digits.toml: No such file or directory (rank 2 on node2)"
    assert srun("pmix", "train", "/var/tmp/digits.toml") == (2, [line])


@pytest.mark.long
def test_a_run_that_a_job_trains_is_refused_to_another(srun, submit, cluster, told, counting):
    number, run = submit(counting, *LASTING)
    until(lambda: last_step(run) > 0)
    code, (line,) = srun("pmix", "train", "--resume", run)
    assert code == 2
    assert re.fullmatch(rf"mpidl: {run}: in use by process \d+ on node1", line)
    assert finish(cluster, number, told) == 0
    assert counts(run) == [EPOCHS] * SAMPLES
