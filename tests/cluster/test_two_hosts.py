"""Jobs of one mpirun on two hosts, which reach each other by network alone."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hosts import until
from jobs_on_hosts import EPOCHS, SAMPLES, counts, rank_of, summary

JOBS = Path(__file__).parents[2] / "jobs"


@pytest.fixture
def train(two_hosts, of_hosts, tmp_path, monkeypatch):
    """Starts ``mpidl train ARGUMENTS -n 4`` with two ranks on each host."""
    monkeypatch.chdir(tmp_path)

    def start(*arguments):
        words = [sys.executable, "-P", "-m", "mpidl", "train", *arguments, "-n", "4"]
        return two_hosts.begin(words, env=of_hosts(two_hosts), stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    return start


@pytest.mark.long
def test_downpour_on_two_hosts_trains_the_digits(train, tmp_path):
    job = train(JOBS / "digits.toml", "--set", "run.epochs=8")
    _, told = job.communicate(timeout=300)
    assert job.returncode == 0, told
    done = summary(tmp_path / "runs" / "digits")
    assert done["test_accuracy"] > 0.9
    assert (done["ranks"], done["replicas"], done["failures"]) == (4, 2, 0)
    assert sum(done["staleness_histogram"]) == done["pushes"] == done["fetches"]


@pytest.mark.parametrize("transport", ["windows", pytest.param("mixed", marks=pytest.mark.long), "messages"])
def test_what_two_hosts_push_is_applied_once(train, counting, tmp_path, transport):
    job = train(counting, "--set", "run.report=0.1", "--set", f"topology.transport={transport}")
    _, told = job.communicate(timeout=300)
    assert job.returncode == 0, told
    assert "4 ranks on 2 hosts" in told
    assert "\nnode1: coordinator, worker 0\nnode2: server 0, worker 1\n" in told
    assert counts(tmp_path / "runs" / "counting") == [EPOCHS] * SAMPLES


def test_a_rank_that_is_killed_on_the_other_host_is_named_with_it(train, counting, tmp_path):
    job = train(counting, "--set", "debug.gradient_seconds=1", "--set", "run.epochs=100")
    until(lambda: (tmp_path / "runs" / "counting" / "checkpoints" / "0").exists() and rank_of(3, tmp_path))
    os.kill(rank_of(3, tmp_path), signal.SIGKILL)
    _, told = job.communicate(timeout=300)
    assert job.returncode == 1
    assert told.splitlines()[-1] == "mpidl: rank 3 (worker 1) on node2 was killed by SIGKILL"
    assert told.count("killed") == 1
