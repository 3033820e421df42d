"""A host is lost: the job starts again on the other one, from what lies in its memory."""

import json
import re
import subprocess
import sys

import pytest
from hosts import until
from jobs_on_hosts import EPOCHS, SAMPLES, counts, last_step, summary

pytestmark = pytest.mark.long


def mirrored(run):
    """Return the steps of the mirrors that a run has made."""
    try:
        events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines(True) if line[-1] == "\n"]
    except FileNotFoundError:
        return []
    return [each["step"] for each in events if each["event"] == "checkpoint" and each.get("mirror")]


@pytest.mark.parametrize("algorithm", ["downpour", "easgd"])
def test_a_job_goes_on_from_the_memory_of_the_host_that_is_left(
    two_hosts, of_hosts, counting, tmp_path, monkeypatch, algorithm
):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "counting"
    keys = {"topology.mirror": 0.3, "checkpoint.every": 1000, "debug.gradient_seconds": 0.1}
    if algorithm == "easgd":  # whose replicas keep a vector each
        keys |= {"algorithm.name": algorithm, "server.rule": "default"}
    words = [sys.executable, "-P", "-m", "mpidl", "train", counting, "-n", "4", "--retries", "1"]
    words += [f"--set={key}={value}" for key, value in keys.items()]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    job = two_hosts.begin(words, env=of_hosts(two_hosts), **pipes)
    until(lambda: len(mirrored(run)) > 3)
    assert last_step(run) == 0, "no other checkpoint has been made"
    two_hosts.crash("node2")
    try:
        reached = mirrored(run)[-1]
        told, _ = job.communicate(timeout=300)
    finally:
        two_hosts.start("node2")
    assert job.returncode == 0, told
    found = re.search(r"counting: going on from the mirror of step (\d+) in the nodes' memory", told)
    assert found is not None, told
    assert int(found[1]) >= reached, told
    if algorithm == "downpour":
        assert counts(run) == [EPOCHS] * SAMPLES
    assert summary(run)["samples"] == EPOCHS * SAMPLES
    assert two_hosts.run(["ls", "/dev/shm"], host="node1") == ""
