"""Timelines by the command line, of virtual clusters and of jobs on ranks."""

import gzip
import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from mpidl.config import toml
from mpidl.tracing import KINDS, read
from timelines import check, seconds

DIGITS = Path(__file__).parents[2] / "jobs" / "digits.toml"


def simulate(mpidl_here, *settings, job=DIGITS, replicas=4):
    words = [word for setting in settings for word in ("--set", setting)]
    done = mpidl_here("simulate", job, "--replicas", replicas, "--json", *words)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    return summary, read(Path(summary["run_dir"]))


def test_a_virtual_cluster_leaves_a_timeline_in_its_time(mpidl_here, tmp_path):
    settings = (
        "run.trace=true", "run.epochs=2", "topology.servers=2", "algorithm.n_push=2", "algorithm.n_fetch=2",
        "virtual.compute=0.01", "virtual.latency=1e-3", "virtual.bandwidth=1e8", "virtual.service=2e-3",
    )  # fmt: skip
    summary, found = simulate(mpidl_here, *settings)
    assert [each.role for each in found] == ["coordinator", "server 0", "server 1", *(f"worker {n}" for n in range(4))]
    assert check(found) > 2 * summary["pushes"]
    for rank in found[3:]:
        gradients = rank.spans[rank.spans["kind"] == KINDS.index("gradient")]
        assert gradients["end"] - gradients["start"] == pytest.approx(0.01, abs=1e-6)
        assert seconds(rank, "wait") > 0
        assert seconds(rank, "fetch") > 0
    assert sum((each.spans["kind"] == KINDS.index("push")).sum() for each in found) == summary["pushes"]
    for rank in found[1:3]:
        assert len(rank.spans) == summary["pushes"]
        assert rank.spans["end"] - rank.spans["start"] == pytest.approx(2e-3, abs=1e-6)
        assert sorted(rank.spans["clock"]) == list(range(1, 1 + summary["pushes"]))

    _, again = simulate(mpidl_here, *settings)
    for one, other in zip(found, again, strict=True):
        assert [name for name in one.spans.dtype.names if (one.spans[name] != other.spans[name]).any()] in (
            [], ["start", "end", "spent"], ["start", "end"],
        )  # fmt: skip

    run = "runs/virtual/digits"
    done = mpidl_here("report", run, f"{run}-2", "--trace", "both.json.gz")
    assert (done.returncode, done.stdout) == (0, "both.json.gz\n")
    events = json.loads(gzip.decompress((tmp_path / "both.json.gz").read_bytes()))["traceEvents"]
    assert {each["name"] for each in events if each["ph"] == "X"} == {"gradient", "push", "fetch", "wait", "apply"}
    refused = mpidl_here("report", run, "--trace", "both.json.gz")
    assert refused.returncode == 2
    assert "both.json.gz: exists already, expected --force" in refused.stderr
    assert mpidl_here("report", run, "--trace", "both.json.gz", "-o", "page.html").returncode == 2


@pytest.mark.parametrize("algorithm", ["easgd", "sandblaster", "backup_sync", "hogwild"])
def test_every_kind_of_exchange_leaves_a_timeline(mpidl_here, tmp_path, algorithm):
    job = tomllib.loads(DIGITS.read_text()) | {"algorithm": {"name": algorithm}, "virtual": {"compute": 0.01}}
    del job["server"], job["topology"]
    job["run"] = {"epochs": 2, "trace": 0.5}
    (tmp_path / "job.toml").write_text(toml.dump(job))
    _, found = simulate(mpidl_here, job=tmp_path / "job.toml", replicas=2)
    check(found)
    assert sum(seconds(each, "gradient") for each in found) > 0


def test_a_run_in_one_process_leaves_a_timeline(mpidl_here):
    done = mpidl_here("train", DIGITS, "--json", "--set", "run.trace=true", "--set", "run.epochs=1")
    summary = json.loads(done.stdout)
    (found,) = read(Path(summary["run_dir"]))
    check([found])
    assert 0 < seconds(found, "gradient") < summary["seconds"]
    assert np.ptp(found.spans["start"]) < summary["seconds"] + 1


def test_a_job_keeps_the_timelines_of_the_living(mpidl, tmp_path):
    """A server dies: another process goes on with its rank, and the timelines of all others are whole."""
    done = mpidl(
        "train", DIGITS, "-n", 4, "--json", "--set", "run.trace=true", "--set", "run.epochs=4",
        MPIDL_DIE="1:chunk-applied:20",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    found = {each.rank: each for each in read(tmp_path / summary["run_dir"])}
    assert {rank: each.role for rank, each in found.items()} == {
        0: "coordinator", 1: "server 0", 2: "worker 0", 3: "worker 1",
    }  # fmt: skip
    assert check(found.values()) > 10
    kinds = [KINDS[kind] for kind in found[1].spans["kind"]]
    assert kinds[0] == "recover"
    assert "apply" in kinds
    # The figures are means over the workers, of seconds of training.
    shares, workers = summary["shares"], (found[2], found[3])
    for share, of in {
        "pushing": ["push"],
        "fetching": ["fetch"],
        "waiting": ["wait"],
        "computing": ["gradient", "step", "save"],
    }.items():
        mean = sum(seconds(each, kind) for each in workers for kind in of) / len(workers)
        assert mean == pytest.approx(shares[share] * summary["seconds"], rel=0.03, abs=0.03 * summary["seconds"]), share
