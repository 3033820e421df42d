"""The command that plays a run on a virtual cluster."""

import json
from pathlib import Path

import pytest

from mpidl import open as opened

DIGITS = Path(__file__).parents[2] / "jobs" / "digits.toml"
TIMES = ["virtual.compute=exponential:0.01", "virtual.latency=1e-5", "virtual.bandwidth=1e12", "virtual.service=0"]


def options(*settings):
    return [word for setting in (*TIMES, *settings) for word in ("--set", setting)]


def test_a_simulation_leaves_what_a_run_leaves_and_a_seed_decides_it(mpidl_here, tmp_path):
    command = ("simulate", DIGITS, "--replicas", 50, "--json", *options("run.epochs=60", "data.portion=32"))
    summary, again = (json.loads(mpidl_here(*command).stdout) for _ in range(2))
    assert (summary["servers"], summary["replicas"], summary["ranks"]) == (1, 50, 52)
    # 50 replicas, each 32 samples in a hundredth of a second.
    assert summary["samples_per_second"] == pytest.approx(50 * 32 / 0.01, rel=0.1)
    assert summary["staleness"]["mean"] == pytest.approx(49, rel=0.05)
    assert summary.pop("run_dir") != again.pop("run_dir")
    assert summary.pop("date") <= again.pop("date")
    assert summary["virtual"] is True
    # Virtual time begins at the real time, in whose last digits it is rounded.
    for name in ("seconds", "samples_per_second", "timing"):
        assert str(summary.pop(name))[:4] == str(again.pop(name))[:4]
    assert summary == again

    real = json.loads(mpidl_here("train", DIGITS, "--json", "--set", "run.epochs=1").stdout)
    assert real["virtual"] is False
    assert set(real) - {"run_dir", "date"} == set(summary) | {"seconds", "samples_per_second", "timing"}
    run = tmp_path / "runs" / "virtual" / "digits"
    assert {entry.name for entry in run.iterdir()} == {
        ".lock", "config.toml", "metrics.jsonl", "events.jsonl", "status.json", "summary.json", "checkpoints",
    }  # fmt: skip
    assert mpidl_here("evaluate", run, "--json").returncode == 0
    ranks = opened(run).status["ranks"]
    assert [each["role"] for each in ranks[:3]] == ["coordinator", "server 0", "worker 0"]
    assert sum(each["samples"] for each in ranks[2:]) == summary["samples"]
    assert {each["state"] for each in ranks[2:]} == {"trained"}
    assert ranks[2]["shares"]["computing"] > 0.5
    assert ranks[1]["staleness"] == pytest.approx(summary["staleness"]["mean"], abs=1e-3)


def test_the_time_to_an_accuracy_is_virtual(mpidl_here):
    done = mpidl_here(
        "simulate", DIGITS, "--replicas", 4, "--json", *options("run.target=accuracy >= 0.8", "virtual.compute=1.0")
    )
    summary = json.loads(done.stdout)
    assert summary["test_accuracy"] >= 0.8
    assert 10 < summary["seconds_to_target"] <= summary["seconds"]
    assert summary["epochs"] < 30


def test_deaths_and_returns_are_events(mpidl_here, tmp_path):
    job = tmp_path / "job.toml"
    job.write_text(DIGITS.read_text() + "\n[[virtual.death]]\nreplica = 1\nat = 0.02\nreturns = 0.05\n")
    done = mpidl_here("simulate", job, "--replicas", 3, *options("run.epochs=5"))
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "runs" / "virtual" / "job" / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert [(e["event"], e["role"]) for e in events if e["event"] not in ("device", "checkpoint")] == [
        ("failure", "worker 1"),
        ("recovery", "worker 1"),
    ]


def test_a_rank_that_has_died_is_dead_in_the_status(mpidl_here, tmp_path):
    job = tmp_path / "job.toml"
    job.write_text(DIGITS.read_text() + "\n[[virtual.death]]\nreplica = 1\nat = 0.02\n")
    assert mpidl_here("simulate", job, "--replicas", 3, *options("run.epochs=1")).returncode == 0
    ranks = opened(tmp_path / "runs" / "virtual" / "job").status["ranks"]
    assert [each["state"] for each in ranks[2:]] == ["trained", "dead", "trained"]


def test_durations_of_a_real_run(mpidl_here, tmp_path):
    timing = {"compute": 0.25, "compute_deviation": 0.0, "service": 0.0, "bandwidth": None}
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "summary.json").write_text(json.dumps({"timing": timing}))
    settings = ("--set", "virtual.calibration=old", "--set", "run.steps=40", "--json")
    summary = json.loads(mpidl_here("simulate", DIGITS, "--replicas", 4, *settings).stdout)
    # Ten portions of four batches: two of the four replicas take three.
    assert summary["seconds"] == pytest.approx(3 * 4 * 0.25, rel=0.01)


MEASURED = """
[node]
hosts = ["alpha"]
mpi = "Open MPI v5.0.8"
date = "2026-03-01T10:00:00+00:00"
cores = 2
memory = 1000000000
memcpy = 1e10
update = 1e9
flops = 1e7
"""


@pytest.mark.parametrize("own", [True, False])
def test_durations_that_the_doctor_has_saved(mpidl_here, tmp_path, monkeypatch, own):
    path = tmp_path / "mpidl" / "measured.toml"
    path.parent.mkdir()
    path.write_text(MEASURED)
    settings = ("--set", "run.steps=40", "--json") if own else ("--set", "run.steps=40", "--json", *calibration(path))
    if own:
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    ended = mpidl_here("simulate", DIGITS, "--replicas", 2, *settings)
    assert f"mpidl: durations: {path}: node on alpha on 2026-03-01; assumed, as `mpidl doctor" in ended.stderr
    # 32 samples through 64-128-64-10; 40 steps by two replicas on two cores.
    compute = 32 * 2 * (2 * 64 * 128 + 3 * 128 * 64 + 3 * 64 * 10) / 1e7
    assert json.loads(ended.stdout)["seconds"] == pytest.approx(20 * compute, rel=0.05)


def calibration(path):
    return ("--set", f"virtual.calibration={path}")


def test_nodes_have_relays(mpidl_here):
    settings = options("topology.relay=true", "virtual.ranks_per_node=4", "virtual.bandwidth=1e6", "run.steps=100")
    done = mpidl_here("simulate", DIGITS, "--replicas", 5, "--json", *settings)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    # A coordinator, a relay and two workers; a server and three workers.
    assert (summary["ranks"], summary["relays"], summary["servers"], summary["replicas"]) == (8, 1, 1, 5)
    received = sum(summary["staleness_histogram"])
    assert received < summary["pushes"]
    assert summary["bytes_pushed"] % received == 0


def test_cut_replicas_take_less_time_for_the_same_result(mpidl_here):
    settings = ("--set", "virtual.compute=0.01", "--set", "run.steps=20", "--set", "virtual.bandwidth=1e9", "--json")

    def summary(partitions):
        done = mpidl_here("simulate", DIGITS, "--replicas", 1, *settings, "--set", f"topology.partitions={partitions}")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    whole, cut = summary(1), summary(2)
    assert (cut["partitions"], cut["ranks"], cut["replicas"]) == (2, 4, 1)
    assert (whole["partitions"], whole["ranks"]) == (1, 3)
    for key in ("test_loss", "test_accuracy", "samples", "bytes_pushed", "bytes_fetched"):
        assert cut[key] == whole[key]
    assert 0.5 < cut["seconds"] / whole["seconds"] < 0.7


def test_what_cannot_be_cut_is_one_line(mpidl_here):
    done = mpidl_here("simulate", DIGITS, "--replicas", 2, *options("topology.partitions=1000"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("mpidl: topology.partitions: 1000, expected at most 32: ")
    assert len(done.stderr.splitlines()) == 1


def test_fetches_follow_their_pushes_unless_they_go_through_windows(mpidl_here, tmp_path):
    (tmp_path / "wide.toml").write_text(
        """
        run.steps = 10
        data.source = "digits"
        model.layer = [{type = "dense", units = 16000}, {type = "dense", units = 10}]
        virtual = {compute = 0.01, bandwidth = 1e7}
        """
    )

    def seconds(transport):
        words = ("--replicas", 1, "--json", "--set", f"topology.transport={transport}")
        done = mpidl_here("simulate", "wide.toml", *words)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["seconds"]

    # Most of a step of 4.8 MB is the network's.
    assert seconds("windows") > 1.4 * seconds("auto")
