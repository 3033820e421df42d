"""What ``mpidl plan`` proposes and why."""

import pytest

from measured_machines import BYTES, FACTORY, LINK, NODE, SLOW, config
from mpidl.algorithms import ALGORITHMS
from mpidl.config import load
from mpidl.config.measured import Link, Measured, MeasuredNode
from mpidl.engines.virtual.times import Constant, Times
from mpidl.errors import UsageError
from mpidl.job.build import build
from mpidl.job.durations import JobDurations
from mpidl.job.planning import plan_model
from mpidl.runs import search
from mpidl.runs.plan import plan
from mpidl.runs.proposal import apply, as_text, propose
from mpidl.runs.search import Search, predict

#: A network and servers that take no time.
FREE = {"bandwidth": 1e15, "latency": 0, "service": 0}

pytestmark = pytest.mark.usefixtures("few_steps")


def proposed(**virtual):
    """Return the numbers of servers and of replicas that are proposed for 16 ranks."""
    proposal = propose(config(virtual=virtual), 16)["proposal"]
    return proposal["servers"], proposal["replicas"]


def uncut(config, ranks):
    """Return the predictions of all topologies whose replicas are a rank each, without relays, by number of servers."""
    found = Search(build(config), ranks)
    whole = [each for each in found.topologies() if each.cut.partitions == 1 and not each.section.relay]
    return {each.section.servers: found.predict(each) for each in whole}


def test_as_many_servers_as_make_it_faster():
    assert proposed(**SLOW) == (6, 9)
    # Nothing waits for a link: each server is a worker less.
    assert proposed(compute=0.02, **FREE) == (1, 14)


def test_more_servers_are_tried_where_the_second_makes_it_slower():
    cluster = config(virtual=SLOW | {"ranks_per_node": 3})
    speeds = {servers: each["samples_per_second"] for servers, each in uncut(cluster, 12).items()}
    assert speeds[2] < speeds[1] < max(speeds.values()) / 1.2
    found = propose(cluster, 12)
    assert max(each["samples_per_second"] for each in found["candidates"]) >= 0.98 * max(speeds.values())


def test_a_fetch_through_windows_waits_for_its_push():
    data = {"source": "synthetic", "shape": [10_000], "batch": 8}
    default, windows = (
        uncut(config(data=data, virtual=SLOW, topology=topology), 3)[1]["step_seconds"]
        for topology in ({}, {"transport": "windows"})
    )
    # A push and a fetch take as long as each other, and one after the other.
    assert windows - 0.02 == pytest.approx(2 * (default - 0.02), rel=0.1)


def test_a_proposal_holds_a_plan():
    found = propose(config(virtual=SLOW, topology={"servers": 2}), 16)
    planned = plan(config(topology={"servers": 6}, virtual={"ranks_per_node": 1}), 16)
    assert {key: found[key] for key in planned} == planned
    best = next(each for each in found["candidates"] if each["servers"] == 6 and each["partitions"] == 1)
    assert best["fetched"] == pytest.approx(BYTES)
    assert best["pushed"] == pytest.approx(BYTES, rel=0.05)
    assert best["memory"] == max(sum(rank["memory"].values()) for rank in planned["roles"])
    assert best["samples_per_second"] == pytest.approx(9 * 8 / best["step_seconds"])


def test_what_was_measured_counts_where_nothing_is_given(measured):
    path = measured(Measured(NODE, LINK))
    found = propose(config(), 6)
    # Operations of 8 samples: the first layer's inputs need no gradient.
    compute = 8 * 2 * (2 * 300 * 500 + 3 * 500 * 10) / 3e10
    origin = f"{path}: node on alpha on 2026-03-01, links within on alpha on 2026-03-01"
    assert found["why"][0] == f"figures: {origin}; all ranks on one node of 8 cores"
    job = build(config())
    times = JobDurations(job.config.virtual, Measured(NODE, LINK)).times(job, 1, 4)
    assert times.compute.mean == pytest.approx(compute)
    assert times.service.mean == pytest.approx(BYTES / 2e9)
    assert (times.bandwidth, times.latency.mean, times.cores) == (pytest.approx(4e9), 1e-6, 8)
    assert uncut(config(), 6)[1]["step_seconds"] == predict(job, 1, 4, times).step_seconds
    # What the configuration gives has the last word.
    given = propose(config(virtual=SLOW), 6)["why"][0]
    assert given == (
        f"figures: the section [virtual]; {origin}; assumed, as `mpidl doctor --save` would measure them: "
        "messages of 50 us; 1 rank on each node"
    )


def test_nodes_have_as_many_ranks_as_cores_where_links_between_them_were_measured(measured):
    slow = Link(**{**vars(LINK), "push_bandwidth": 1e8, "fetch_bandwidth": 3e8})
    measured(Measured(NODE, LINK, slow))
    assert propose(config(), 16)["why"][0].endswith("; 8 ranks on each node")
    job = build(config())
    times = JobDurations(job.config.virtual, Measured(NODE, LINK, slow)).times(job, 1, 1)
    assert (times.bandwidth, times.memory_bandwidth, times.cores) == (pytest.approx(1.5e8), pytest.approx(4e9), None)


def test_without_any_figures_they_are_assumed():
    assumed = "figures: assumed, as `mpidl doctor --save` would measure them: "
    assert propose(config(), 4)["why"][0].startswith(f"{assumed}gradients of 50 Gflop/s, memory of 5 GB/s, ")
    given = propose(config(virtual={"compute": 0.02, "ranks_per_node": 2}), 4)["why"][0]
    network = "a network of 1.2 GB/s, messages of 50 us, servers that apply 2.5 GB/s; 2 ranks on each node"
    assert given == f"figures: the section [virtual]; {assumed.removeprefix('figures: ')}{network}"


def test_what_fits_the_memory(measured):
    # One server has mailboxes of four workers, 20 MB; two servers those of three, 15 MB.
    measured(Measured(MeasuredNode(**{**vars(NODE), "memory": 18_000_000}), LINK))
    assert [uncut(config(), 6)[servers]["fits"] for servers in (1, 2, 3)] == [False, True, True]
    found = propose(config(), 6)
    assert found["proposal"]["servers"] > 1 or found["proposal"]["partitions"] > 1
    measured(Measured(MeasuredNode(**{**vars(NODE), "memory": 1000}), LINK))
    found = propose(config(), 6)
    assert not any(each["fits"] for each in found["candidates"])
    assert found["why"][-1].startswith("no topology fits the memory of these nodes")


def test_a_model_too_large_for_a_rank_is_cut(measured, tmp_path):
    # A rank of its own takes 2.9 MB; of two, each has half of the parameters.
    measured(Measured(MeasuredNode(**{**vars(NODE), "cores": 1, "memory": 2_700_000}), LINK, LINK))
    found = propose(config(), 6)
    assert not any(each["fits"] for each in uncut(config(), 6).values())
    assert found["proposal"] == {"servers": 3, "replicas": 1, "partitions": 2, "stages": 1, "micro_batches": 1}
    assert [cut["layer"] for cut in found["cuts"]] == ["0-dense", "1-dense", "outputs"]
    cut = plan_model(build(config()), 2)
    assert sum(each["moved"] for each in found["cuts"]) == 4 * sum(sum(each.sent) for each in cut.traffic(8))
    workers = [rank for rank in found["roles"] if rank["role"].startswith("worker")]
    assert [rank["memory"]["parameters"] for rank in workers] == [4 * size for size in cut.parameters]
    text = as_text(found).splitlines()
    assert "proposed: 3 servers and 1 replica, cut into 2 partitions" in text
    assert any(line.endswith("  too large") for line in text)
    path = tmp_path / "job.toml"
    path.write_text(config().to_toml())
    assert apply(found, path) == f"{path}: topology.servers = 3, topology.partitions = 2"
    assert (load(path).topology.servers, load(path).topology.partitions) == (3, 2)
    # A proposal without cuts takes them back.
    (tmp_path / "mpidl" / "measured.toml").unlink()
    uncut_again = propose(load(path, ["virtual.compute=0.02", "virtual.bandwidth=1e8"]), 16)
    assert apply(uncut_again, path) == f"{path}: topology.servers = 6, topology.partitions = 1"


def test_stages_are_compared(tmp_path):
    """Layers with many parameters that ranks would have to share: stages needn't."""
    layers = [{"type": "dense", "units": 256, "cut": "samples"} for _ in range(4)]
    data = {"source": "synthetic", "shape": [256], "batch": 16, "classes": 256}
    virtual = {"compute": 0.02, "bandwidth": 1e8, "memory_bandwidth": 1e8, "latency": 0}
    found = propose(config(model={"layer": layers}, data=data, virtual=virtual, algorithm={"name": "sync"}), 3)
    one, two = found["candidates"]
    assert [(each["partitions"], each["stages"], each["micro_batches"]) for each in (one, two)] == [
        (1, 1, 1),
        (2, 2, 8),
    ]
    # Half of the work, and an eighth of that for the pipeline to fill and to drain.
    assert one["gradient_seconds"] == pytest.approx(0.02)
    assert two["gradient_seconds"] == pytest.approx(0.01 * 9 / 8, rel=0.1)
    assert "proposed: 0 servers and 1 replica, cut into 2 partitions in 2 stages, a minibatch in 8 micro-batches" in (
        as_text(found).splitlines()
    )
    path = tmp_path / "job.toml"
    path.write_text("[topology]\nservers = 1  # kept\n")
    line = "topology.partitions = 2, topology.stages = 2, topology.micro_batches = 8"
    assert apply(found, path) == f"{path}: {line}"
    assert path.read_text() == "[topology]\nservers = 1  # kept\npartitions = 2\nstages = 2\nmicro_batches = 8\n"


def test_a_whole_model_takes_settings_of_stages_back():
    job = build(config(topology={"partitions": 2, "stages": 2, "micro_batches": 8}))
    whole = next(each for each in Search(job, 4).topologies() if each.cut.partitions == 1)
    one = dict.fromkeys(("topology.partitions", "topology.stages", "topology.micro_batches"), 1)
    assert whole.settings(job.config.topology) == one


def test_the_plan_of_a_job_with_stages_is_its_own():
    staged = config(topology={"partitions": 2, "stages": 2})
    moved = sum(sum(each.sent) for each in plan_model(build(staged), 2, stages=2).traffic(8))
    assert sum(each["moved"] for each in plan(staged)["cuts"]) == 4 * moved


def test_algorithms_without_servers():
    found = propose(config(algorithm={"name": "sync"}, virtual=SLOW), 16)
    assert found["proposal"] == {"servers": 0, "replicas": 15, "partitions": 1, "stages": 1, "micro_batches": 1}
    found = propose(config(algorithm={"name": "sync"}, virtual=SLOW), 5)
    # One replica of four ranks has nobody to reduce with.
    assert found["proposal"] == {"servers": 0, "replicas": 1, "partitions": 4, "stages": 1, "micro_batches": 1}
    assert found["candidates"][-1]["step_seconds"] == pytest.approx(found["candidates"][-1]["gradient_seconds"])
    # Each replica of one rank sends and receives three quarters of the vector, twice.
    assert found["candidates"][0]["step_seconds"] == pytest.approx(0.02 + 2 * 0.75 * BYTES / 1e8, rel=0.05)


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"sandblaster", "stacking"}))
def test_every_algorithm_without_a_coordinator_is_predicted(name):
    found = propose(config(algorithm={"name": name}, virtual=SLOW), 5)
    # Four replicas without anything to wait for make 4 * 8 samples each 20 ms, or fewer as much faster ones.
    for each in found["candidates"]:
        assert 0 < each["samples_per_second"] < 1.05 * each["replicas"] * each["partitions"] * 8 / 0.02
    proposal = found["proposal"]
    assert proposal["servers"] + proposal["replicas"] * proposal["partitions"] == 4


def test_what_is_not_predicted(tmp_path, monkeypatch):
    found = propose(config(algorithm={"name": "sandblaster"}, topology={"servers": 2}), 6)
    assert (found["candidates"], found["proposal"]["servers"]) == ([], 2)
    assert found["why"] == ["no speed is predicted: the steps of sandblaster depend on their results"]
    (tmp_path / "unknown_model.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    unknown = {"factory": "unknown_model:make"}
    (line,) = propose(config(model=unknown), 4)["why"]
    assert "`mpidl train CONFIG -n 4 --set run.steps=200 --set run.name=measured` on such a node measures" in line
    assert line.endswith("then add --set virtual.calibration=runs/measured, or give their seconds as virtual.compute")
    assert propose(config(model=unknown, virtual=SLOW), 4)["candidates"]
    with pytest.raises(UsageError, match=r"^--apply: no speed is predicted: "):
        apply(found, tmp_path / "job.toml")


def test_relays_are_proposed_where_they_are_faster(tmp_path):
    nodes = SLOW | {"ranks_per_node": 8}
    found = propose(config(virtual=nodes), 16)
    # The second node has no server, so that one of its ranks is a relay.
    assert found["settings"] == {"topology.relay": True}
    assert found["proposal"] == {"servers": 1, "replicas": 13, "partitions": 1, "stages": 1, "micro_batches": 1}
    assert found["nodes"] == 2
    assert "proposed: 1 server, 13 replicas and 1 relay\n" in as_text(found)
    (relayed,) = (each for each in found["candidates"] if each["servers"] == each["partitions"] == 1)
    assert relayed["roles"]["relay"] == 1
    assert relayed["samples_per_second"] > 1.3 * uncut(config(virtual=nodes), 16)[1]["samples_per_second"]
    path = tmp_path / "job.toml"
    path.write_text(config().to_toml())
    assert apply(found, path) == f"{path}: topology.servers = 1, topology.relay = true"
    assert load(path).topology.relay


def test_relays_are_not_compared_where_there_can_be_none():
    nodes = SLOW | {"ranks_per_node": 8}
    for algorithm in ({"name": "dcasgd"}, {"name": "sync"}):
        found = propose(config(algorithm=algorithm, virtual=nodes), 16)
        assert found["candidates"]
        assert "relay" not in as_text(found)
    assert "relay" not in as_text(propose(config(virtual=SLOW), 16))


@pytest.mark.parametrize(
    ("bandwidth", "algorithm", "expected"),
    [
        (1e9, {}, "fp32"),
        (2e8, {}, "bf16"),
        (1e8, {}, "int8"),
        (1e7, {}, "onebit"),
        (1e7, {"wire": "bf16"}, None),
        (1e7, {"name": "sync"}, None),
        (None, {}, "fp32"),
    ],
)
def test_the_least_lossy_wire_format_with_short_exchanges_is_recommended(bandwidth, algorithm, expected):
    virtual = {"compute": 0.02} | ({} if bandwidth is None else {"bandwidth": bandwidth})
    lines = [line for line in propose(config(virtual=virtual, algorithm=algorithm), 3)["why"] if "wire" in line]
    assert [line.split('"')[1] for line in lines] == [expected] * (expected is not None)
    assert [" would give " in line for line in lines] == [expected != "fp32"] * len(lines)


def test_what_the_fullest_card_carries(monkeypatch):
    monkeypatch.setattr(search, "STEPS", (200, 200))
    # The server is on the second node. Its workers there pass no card; the one of the first node sends and receives.
    times = Times(Constant(0.02), bandwidth=1e8, ranks_per_node=2, memory_bandwidth=1e12)
    alone, beside = (predict(build(config()), 1, replicas, times) for replicas in (1, 2))
    step = 0.02 + 2 * BYTES / 1e8
    assert alone.load == pytest.approx(BYTES / step / 1e8, rel=0.05)
    assert beside.load == pytest.approx(alone.load, rel=0.1)
    assert beside.samples_per_second == pytest.approx(8 / step + 8 / 0.02, rel=0.1)
    assert predict(build(config()), 1, 2, Times(Constant(0.02))).load == 0


def test_larger_portions_where_the_coordinator_could_not_hand_out_so_many(monkeypatch, measured):
    monkeypatch.setattr(search, "TICKETS", 200)
    nodes, data = {"compute": 1e-3, "ranks_per_node": 8}, {"source": "synthetic", "shape": [300], "batch": 8}
    found = propose(config(virtual=nodes), 16)
    (line,) = (each for each in found["why"] if "data.portion" in each)
    portion = int(line.rpartition("= ")[2])
    best = max(each["samples_per_second"] for each in found["candidates"])
    assert portion % 8 == 0
    assert best / portion <= 100 < best / (portion - 8)
    larger = propose(config(virtual=nodes, data=data | {"portion": portion}), 16)
    assert not any("data.portion" in each for each in larger["why"])
    # On one node no ticket is a message.
    measured(Measured(NODE, LINK))
    one = propose(config(), 6)
    assert one["candidates"][0]["samples_per_second"] > 200 * 4 * 8
    assert not any("data.portion" in each for each in one["why"])


def test_the_text():
    lines = as_text(propose(config(virtual=SLOW), 16)).splitlines()
    assert lines[1].split() == [
        *("servers", "replicas", "partitions", "stages", "largest", "rank", "fetched", "pushed", "step", "samples/s")
    ]
    table = lines[2 : lines.index("", 2)]
    assert [line.split()[:4] for line in table if line.endswith("  proposed")] == [["6", "9", "1", "1"]]
    reasons = lines[lines.index("proposed: 6 servers and 9 replicas") + 1 :]
    assert reasons[1].startswith("- a step takes ")
    assert ", a gradient alone 20 ms; each replica fetches 622 kB and pushes " in reasons[1]
    assert reasons[2].startswith("- the busiest network card carries ")
    assert reasons[2].endswith(" % of its capacity")


def test_a_proposal_is_written_into_the_file(tmp_path):
    path = tmp_path / "job.toml"
    text = config(virtual=SLOW).to_toml().replace("[topology]", "# By hand.\n[topology]")
    path.write_text(text)
    assert apply(propose(load(path), 16), path) == f"{path}: topology.servers = 6"
    assert path.read_text() == text.replace("servers = 1", "servers = 6")
    assert load(path).topology.servers == 6


@pytest.mark.parametrize("sparse", [False, True])
def test_models_with_tables_are_whole_and_push_themselves(sparse):
    rows = {"type": "embedding", "sparse": True, "dimension": 4} if sparse else {"type": "dense", "units": 500}
    model = {"layer": [rows, {"type": "dense", "units": 10}]}
    found = list(Search(build(config(model=model, virtual={"ranks_per_node": 4} | SLOW)), 12).topologies())
    assert {each.section.servers for each in found} > {1}
    assert any(each.section.relay for each in found) is not sparse
    assert any(each.cut.partitions > 1 for each in found) is not sparse
