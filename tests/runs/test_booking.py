"""What ``mpidl plan --nodes`` says of numbers of nodes."""

import json
import time
from dataclasses import replace
from math import inf

import pytest

from measured_machines import BYTES, FACTORY, LINK, NODE, SLOW, config
from mpidl.config.measured import Measured
from mpidl.engines.virtual.times import Jitter
from mpidl.errors import UsageError
from mpidl.job.build import build
from mpidl.job.durations import Calibration, JobDurations, Timing
from mpidl.runs import search
from mpidl.runs.proposal import book, booking_as_text
from mpidl.runs.search import Search

SAMPLES, EPOCHS, BATCH = 40_000, 3, 8

pytestmark = pytest.mark.usefixtures("few_steps")


def booked_config(**sections):
    run, virtual = {"epochs": EPOCHS}, {"compute": 0.02}
    data = {"source": "synthetic", "shape": [300], "samples": SAMPLES, "batch": BATCH, "portion": 4 * BATCH}
    return config(**{"run": run, "data": data, "virtual": virtual} | sections)


def test_a_row_for_each_number_of_nodes():
    booked = book(booked_config(), [4, 1, 2, 2], 8, name="job.toml")
    assert [row["nodes"] for row in booked["rows"]] == [1, 2, 4]
    assert booked["samples"] == EPOCHS * SAMPLES
    for row in booked["rows"]:
        assert sum(row["roles"].values()) == row["ranks"] == 8 * row["nodes"]
        assert row["replicas"] * row["partitions"] <= row["roles"]["worker"]
        assert row["hours"] == pytest.approx(EPOCHS * SAMPLES / row["samples_per_second"] / 3600, rel=0.01)
        assert row["node_hours"] == pytest.approx(row["nodes"] * row["hours"])
        # Relative to the samples/s of ranks that all compute gradients.
        assert row["efficiency"] == pytest.approx(row["samples_per_second"] / (row["ranks"] * BATCH / 0.02))
        assert 0.5 < row["efficiency"] < 1
    costs = [row["node_hours"] for row in booked["rows"]]
    worth = [row for row in booked["rows"] if row["node_hours"] <= 1.5 * min(costs)]
    best = min(worth, key=lambda row: row["hours"])
    assert booked["best"] == best["nodes"] == 4
    assert booked["command"].startswith("mpidl submit job.toml --nodes 4 --ranks-per-node 8 --time 0:20:00")
    booked = book(booked_config(), [1], 8, ["run.epochs=3", "topology.servers=1", "virtual.compute=0.02"])
    assert booked["command"].endswith(" --set run.epochs=3 --set topology.servers=1")
    booked = book(booked_config(), [1, 2, 4], 8, name="job.toml")
    lines = booking_as_text(booked).splitlines()
    assert lines[2].split()[:2] == ["nodes", "servers"]
    assert [line.split()[0] for line in lines[3:6]] == ["1", "2", "4"]
    assert [line.endswith("  best") for line in lines[3:6]] == [False, False, True]
    seconds, cost = 3600 * best["hours"], 3600 * best["node_hours"]
    assert lines[7].startswith(f"book 4 nodes: {seconds:.3g} s, {cost:.3g} s of node time")


def test_a_network_and_servers_that_were_not_measured_take_time(monkeypatch):
    """62 replicas of one server: most of them share its node's network card."""
    monkeypatch.setattr(search, "STEPS", (48, 48))
    one_way = ["topology.servers=1", "topology.relay=false"]
    booked = book(booked_config(), [4], 16, one_way)
    (row,) = booked["rows"]
    assert (row["servers"], row["replicas"]) == (1, 62)
    least = 47 * BYTES / 1.2e9
    assert row["step_seconds"] > 1.1 * 0.02
    assert row["samples_per_second"] <= 62 * BATCH / least
    assert row["efficiency"] < 0.8
    assert row["limit"] == "the network of a server's node"
    assumed = "assumed, as `mpidl doctor --save` would measure them: a network of 1.2 GB/s, messages of 50 us, servers"
    assert assumed in booked["why"][0]
    # Where the network is fast, the server is not.
    fast = booked_config(virtual={"compute": 1e-3, "bandwidth": 1e12, "latency": 0})
    (row,) = book(fast, [4], 16, one_way)["rows"]
    assert row["limit"] == "the servers"
    assert row["samples_per_second"] <= 1.05 * BATCH / (BYTES / 2.5e9)


def test_shared_memory_is_not_the_network(measured):
    measured(Measured(NODE, within=LINK))
    section = {"data": {"source": "synthetic", "shape": [300], "batch": 8}, "virtual": {}}
    booked = book(booked_config(**section), [2], 8)
    assert "a network of 1.2 GB/s, messages of 50 us" in booked["why"][0]
    assert "a network card carries 1.2 GB/s in each direction, and a message takes 50 us" in booked["why"][1]
    measured(Measured(between=replace(LINK, push_bandwidth=4e8, fetch_bandwidth=4e8)))
    booked = book(booked_config(**section), [2], 8)
    assert "assumed" not in booked["why"][0]
    assert "a network card carries 400 MB/s in each direction, and a message takes 1 us" in booked["why"][1]


@pytest.mark.parametrize("one_node", [True, False])
def test_what_a_run_measured_counts_where_it_ran(one_node):
    job = build(booked_config(virtual={"ranks_per_node": 4}))
    run = Calibration(Timing(0.5, 0.1, service=1e-3, bandwidth=3e9), servers=2, hosts=["a"] if one_node else ["a", "b"])
    times = JobDurations(job.config.virtual, Measured(), run=run).times(job, shards=4, replicas=6)
    assert times.compute == Jitter(0.5, 0.1)
    assert (times.bandwidth, times.memory_bandwidth) == ((1.2e9, 3e9) if one_node else (3e9, 5e9))
    # Of twice as many servers, each has half of the work.
    assert times.service.mean == pytest.approx(0.5e-3)


def test_a_module_is_measured_by_a_short_run(tmp_path, monkeypatch):
    (tmp_path / "own_model.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    own = {"model": {"factory": "own_model:make"}, "virtual": {}}
    with pytest.raises(UsageError) as error:
        book(booked_config(**own), [1, 2], 4, name="job.toml")
    command = "`mpidl train job.toml -n 4 --set run.steps=200 --set run.name=measured` on such a node"
    assert command in str(error.value)
    assert "then add --set virtual.calibration=runs/measured" in str(error.value)
    timing = {"compute": 0.01, "compute_deviation": 0.1, "service": 1e-5, "bandwidth": 1e9}
    (tmp_path / "runs" / "measured").mkdir(parents=True)
    summary = {"timing": timing, "servers": 1, "hosts": {"alpha": 4}}
    (tmp_path / "runs" / "measured" / "summary.json").write_text(json.dumps(summary))
    booked = book(booked_config(**own | {"virtual": {"calibration": "runs/measured"}}), [1, 2], 4)
    assert booked["why"][0].startswith("figures: the run runs/measured; assumed, ")
    assert booked["why"][1].startswith("a gradient takes 10 ms; a network card carries 1.2 GB/s ")
    assert [row["limit"] for row in booked["rows"]] == ["computing"] * 2


def test_the_best_topology_may_have_relays():
    slow = booked_config(virtual=SLOW)
    booked = book(slow, [2], 8)
    (row,) = booked["rows"]
    assert row["settings"]["topology.relay"] is True
    assert row["roles"]["relay"] >= 1
    assert "--set topology.relay=true" in booked["command"]
    assert "relays" in booking_as_text(booked).splitlines()[2].split()
    (without,) = book(slow, [2], 8, ["topology.relay=false"])["rows"]
    assert "relay" not in without["roles"]
    assert without["samples_per_second"] < row["samples_per_second"]
    # An algorithm whose servers need single pushes has none.
    (row,) = book(booked_config(virtual=SLOW, algorithm={"name": "dcasgd"}), [2], 8)["rows"]
    assert "relay" not in row["roles"]


def test_no_topology_is_faster_than_what_is_not_simulated(monkeypatch):
    """The one that is found is the fastest of all, each of which keeps its bound."""
    job = build(booked_config(virtual=SLOW | {"ranks_per_node": 4}))
    found = Search(job, 12)
    best = found.best()[1]["samples_per_second"]
    every = [(each, found.predict(each)) for each in found.topologies()]
    assert len(every) > 10
    # Predictions of a few steps are not exact.
    assert all(predicted["samples_per_second"] <= 1.1 * each.bound for each, predicted in every)
    assert best >= 0.9 * max(predicted["samples_per_second"] for _, predicted in every)


@pytest.mark.parametrize(("servers", "relay"), [(4, False), (4, True)])
def test_a_part_of_a_large_cluster_stands_for_it(monkeypatch, servers, relay):
    monkeypatch.setattr(search, "STEPS", (24, 24))
    job = build(booked_config(virtual=SLOW | {"compute": "jitter:0.02:0.05", "ranks_per_node": 4}))
    speeds = []
    for large in (inf, 40):
        monkeypatch.setattr(search, "LARGE", large)
        found = Search(job, 48)
        (topology,) = (
            each
            for each in found.topologies()
            if (each.section.servers, each.cut.partitions, each.section.relay) == (servers, 1, relay)
        )
        speeds.append(found.predict(topology)["samples_per_second"])
    assert speeds[0] != speeds[1] == pytest.approx(speeds[0], rel=0.1)


@pytest.mark.long
@pytest.mark.parametrize(("nodes", "seconds"), [(63, 60), (1000, 120)])
def test_many_ranks_are_planned_in_seconds(monkeypatch, nodes, seconds):
    monkeypatch.undo()
    data = {"source": "synthetic", "shape": [300], "samples": SAMPLES, "batch": BATCH, "portion": 20 * BATCH}
    started = time.process_time()
    (row,) = book(booked_config(data=data), [nodes], 16)["rows"]
    assert time.process_time() - started < seconds
    assert row["ranks"] == 16 * nodes
    assert 0 < row["efficiency"] < 1


def test_bookings_of_algorithms_without_servers():
    booked = book(booked_config(algorithm={"name": "sync"}), [1, 2], 8)
    assert [row["servers"] for row in booked["rows"]] == [0, 0]
    assert "topology.servers" not in booked["command"]
    assert booked["rows"][1]["efficiency"] < booked["rows"][0]["efficiency"]


def test_the_coordinator_limits_small_portions(monkeypatch):
    monkeypatch.setattr(search, "TICKETS", 20)
    booked = book(booked_config(), [1, 2], 8)
    one, two = booked["rows"]
    assert two["samples_per_second"] == 20 * 4 * BATCH < one["samples_per_second"]
    assert two["limit"].startswith("the coordinator: set data.portion = ")
    assert int(two["limit"].rpartition(" ")[2]) % BATCH == 0
    assert booked["best"] == 1


def test_a_run_with_fewer_minibatches_than_replicas_takes_a_step():
    booked = book(booked_config(run={"steps": 10}), [1, 4], 16)
    for row in booked["rows"]:
        assert row["hours"] * 3600 == pytest.approx(row["step_seconds"])
    assert booked["best"] == 1
    assert any(line.startswith("10 minibatches are few for ") for line in booked["why"])


def test_what_does_not_fit_the_memory_is_said(measured):
    measured(Measured(replace(NODE, memory=1000)))
    booked = book(booked_config(), [1], 4)
    assert booked["rows"][0]["limit"] == "memory: no topology fits"


def test_what_is_not_booked():
    with pytest.raises(UsageError, match=r"^--nodes: no speed is predicted: the steps of sandblaster depend"):
        book(booked_config(algorithm={"name": "sandblaster"}), [1], 8)
    with pytest.raises(UsageError, match=r"^--nodes 1 --ranks-per-node 1: 1 rank is too few: a coordinator, 1 server"):
        book(booked_config(), [1], 1)
