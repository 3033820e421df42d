"""Relays on two hosts: what crosses the network doesn't grow with the workers of a host."""

import os
import signal
import subprocess
import sys

import pytest
from hosts import until
from jobs_on_hosts import EPOCHS, SAMPLES, counts, rank_of, summary, write_wide

#: Steps of each worker, and bytes of a vector, of which one half is on the other host.
STEPS, VECTOR = 40, 8 << 20


@pytest.fixture
def train(two_hosts, of_hosts, tmp_path, monkeypatch):
    """Runs a job with two ranks on the first host and all others on the second.

    Returns the job's log, and the bytes that crossed the second host's interface.
    """
    monkeypatch.chdir(tmp_path)

    def crossed():
        paths = [f"/sys/class/net/eth0/statistics/{each}_bytes" for each in ("rx", "tx")]
        return sum(map(int, two_hosts.run(["cat", *paths], host="node2").split()))

    def begin(config, ranks, *settings):
        hostfile = tmp_path / f"hostfile-{ranks}"
        hostfile.write_text(f"node1 slots=2\nnode2 slots={ranks - 2}\n")
        environment = of_hosts(two_hosts) | {"PRTE_MCA_prte_default_hostfile": str(hostfile)}
        words = [sys.executable, "-P", "-m", "mpidl", "train", config, "-n", ranks]
        words += [f"--set={each}" for each in ("topology.servers=2", "topology.relay=true", *settings)]
        return two_hosts.begin(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(config, ranks, *settings):
        before = crossed()
        job = begin(config, ranks, *settings)
        _, told = job.communicate(timeout=300)
        assert job.returncode == 0, told
        return told, crossed() - before

    run.begin = begin
    return run


@pytest.mark.long
def test_three_workers_of_a_host_send_no_more_than_one(train, tmp_path):
    config = write_wide(tmp_path, VECTOR // 4)
    crossed, exchanges = {}, {}
    for workers, ranks in ((1, 4), (3, 7)):
        name = f"with-{workers}"
        told, crossed[workers] = train(config, ranks, f"run.steps={workers * STEPS}", f"run.name={name}")
        done = summary(tmp_path / "runs" / name)
        assert (done["replicas"], done["relays"]) == (workers, workers // 2)
        # There is a fetch for each push that servers have received, of which there are two.
        exchanges[workers] = sum(done["staleness_histogram"]) / 2
        assert done["bytes_pushed"] == done["bytes_fetched"] == exchanges[workers] * VECTOR
    assert "\nnode2: server 0, relay 0, workers 0-2\n" in told
    assert exchanges[1] == STEPS
    # On a loaded machine a worker comes too late now and then.
    assert exchanges[3] < 1.25 * STEPS
    assert crossed[3] / exchanges[3] == pytest.approx(crossed[1] / exchanges[1], rel=0.05)


def test_what_workers_of_a_relay_push_is_applied_once(train, counting, tmp_path):
    train(counting, 7)
    assert summary(tmp_path / "runs" / "counting")["relays"] == 1
    assert counts(tmp_path / "runs" / "counting") == [EPOCHS] * SAMPLES


@pytest.mark.long
def test_a_relay_that_is_killed_is_named_with_its_host(train, counting, tmp_path):
    job = train.begin(counting, 7, "debug.gradient_seconds=1", "run.epochs=100")
    until(lambda: (tmp_path / "runs" / "counting" / "checkpoints" / "0").exists() and rank_of(3, tmp_path))
    os.kill(rank_of(3, tmp_path), signal.SIGKILL)
    _, told = job.communicate(timeout=300)
    assert job.returncode == 1
    assert told.splitlines()[-1] == "mpidl: rank 3 (relay 0) on node2 was killed by SIGKILL"
