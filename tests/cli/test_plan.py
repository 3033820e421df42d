"""What ``mpidl plan`` says of a job, and that it takes nothing to say it."""

import json
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from measured_machines import FACTORY
from mpidl.cli import main
from mpidl.cli.arguments import parse
from mpidl.config import from_dict
from mpidl.runs.plan import as_text, plan
from mpidl.shards import ledger
from mpidl.transport.protocol import WORKER_STATUS, ChunkHeader, Control, ShardClock

DIGITS = Path(__file__).parents[2] / "jobs" / "digits.toml"

#: Bytes that a server or relay shows beside parameters and mailboxes: orders, and the clock of its shard.
SHOWN = 8 * (len(Control) + len(ShardClock))


def config(algorithm="downpour", model=None, **sections):
    """A job of two dense layers, 13 x 7 + 7 and 7 x 5 + 5 parameters."""
    layers = [{"type": "dense", "units": 7, "activation": "relu"}, {"type": "dense", "units": 5, "name": "top"}]
    values = {
        "data": {"source": "synthetic", "shape": [13], "classes": 5, "test_samples": 100, "batch": 30},
        "model": {"layer": layers} if model is None else model,
        "algorithm": {"name": algorithm} if isinstance(algorithm, str) else algorithm,
        **sections,
    }
    return from_dict(values)


def test_layers_and_sizes():
    found = plan(config())
    assert [tuple(layer.values()) for layer in found["layers"]] == [
        ("0-dense", "dense", (7,), 98, 392, 182),
        ("top", "dense", (5,), 40, 160, 70),
    ]
    assert (found["parameters"], found["operations"]) == (138, 252)
    assert (found["parameter_bytes"], found["gradient_bytes"], found["state_bytes"]) == (552, 552, 552)
    assert found["activation_bytes"] == 30 * 2 * (7 + 5) * 4


@pytest.mark.parametrize(
    ("rows", "max_rows", "line"),
    [
        ("any", None, "table words: 99 B on the servers for each row"),
        (1000, None, "table words: 99 B on the servers for each row; at most 1,000 rows, 99 kB"),
        (1e6, 2000, "table words: 99 B on the servers for each row; at most 2,000 rows, 198 kB"),
    ],
)
def test_tables_have_no_parameters_but_rows(rows, max_rows, line):
    layers = [
        {"type": "embedding", "sparse": True, "dimension": 6, "rows": rows, "name": "words"},
        {"type": "dense", "units": 5},
    ]
    found = plan(config(model={"layer": layers}, tables={} if max_rows is None else {"max_rows": max_rows}))
    assert found["parameters"] == 13 * 6 * 5 + 5
    assert as_text(found).splitlines()[1] == line


def test_state_follows_the_rule():
    assert plan(config(server={"rule": "sgd"}))["state_bytes"] == 0
    assert plan(config(server={"rule": "adam"}))["state_bytes"] == 2 * 552


def test_servers_keep_what_their_algorithm_gathers():
    """With 3 workers: a vector like the parameters for each, and one more."""
    table, alone, gathered = (
        plan(config(name, server={"rule": "sgd"}, topology={"servers": 1}), ranks=5)
        for name in ("ringleader", "downpour", "softsync")
    )
    state = [found["roles"][1]["memory"]["state"] for found in (table, alone, gathered)]
    assert state == [(3 + 1) * 552, 0, 552]


def test_servers_hold_shards_and_workers_models():
    found = plan(config(topology={"servers": 2}), ranks=5)
    coordinator, first, second, *workers = found["roles"]
    assert [rank["role"] for rank in found["roles"]] == ["coordinator", "server 0", "server 1", "worker 0", "worker 1"]
    assert [part for part, nbytes in coordinator["memory"].items() if nbytes] == ["exchange"]
    assert [tuple(rank["shard"]) for rank in (first, second)] == [(0, 69), (69, 138)]
    memory = {part: nbytes for part, nbytes in first["memory"].items() if nbytes}
    # A ring for each worker: two counters, and two slots (a push and its end) of a shard and its header.
    exchange = SHOWN + 8 * ledger.size(2) + 2 * (16 + 2 * (276 + 8 * len(ChunkHeader)))
    assert memory == {"parameters": 276, "state": 276, "checkpoint": 552, "exchange": exchange}
    assert {part: nbytes for part, nbytes in workers[1]["memory"].items() if nbytes} == {
        "parameters": 552, "gradient": 552, "evaluation": 552, "activations": 100 * 2 * (7 + 5) * 4,
    }  # fmt: skip
    own = sum(coordinator["memory"].values())
    assert found["memory_bytes"] == own + 2 * sum(memory.values()) + 2 * sum(workers[0]["memory"].values())


def test_servers_hold_rows_as_far_as_their_largest_number_is_known():
    ids = {"type": "embedding", "sparse": True, "dimension": 4}
    layers = [ids | {"rows": 1000, "name": "few"}, {"type": "flatten"}, {"type": "dense", "units": 5}]

    def tables(**sections):
        found = plan(config(model={"layer": layers}, topology={"servers": 2}, **sections), ranks=5)
        of_rank = [rank["memory"] for rank in found["roles"]]
        for own in of_rank[1:3]:
            assert own["checkpoint"] == own["parameters"] + own["state"] + own["tables"]
        assert [own["tables"] > 0 for own in of_rank] == [False, *2 * [own["tables"] > 0], False, False]
        return own["tables"]

    row = 2 * 4 * 4 + 51
    assert tables() == 1000 // 2 * row
    assert tables(tables={"max_rows": 600, "rule": "adam"}) == 600 // 2 * (row + 16)
    layers[0] = ids
    assert tables() == 0
    assert tables(tables={"max_rows": 600}) == 600 // 2 * row


def test_nodes_have_relays():
    found = plan(config(topology={"relay": True}, virtual={"ranks_per_node": 4}), ranks=8)
    assert found["nodes"] == 2
    assert [rank["role"] for rank in found["roles"]][:4] == ["coordinator", "relay 0", "worker 0", "worker 1"]
    _, relay, *_ = found["roles"]
    mailboxes = 2 * (3 * 8 + 2 * (8 * len(ChunkHeader) + 552))
    of_workers = 2 * (WORKER_STATUS.itemsize + 4 * 8)
    assert {part: nbytes for part, nbytes in relay["memory"].items() if nbytes} == {
        "parameters": 552, "exchange": 3 * 552 + mailboxes + of_workers + SHOWN,
    }  # fmt: skip
    assert "8 ranks of 2 nodes" in as_text(found)


@pytest.fixture
def more_with():
    """A function: how many bytes more each role of 8 ranks on two nodes with relays exchanges with a wire format."""

    def more(**formats):
        whole = config(topology={"relay": True}, virtual={"ranks_per_node": 4})
        encoded = replace(whole, algorithm=replace(whole.algorithm, **formats))
        plain, found = (
            {rank["role"]: rank["memory"]["exchange"] for rank in plan(each, 8)["roles"]} for each in (whole, encoded)
        )
        return {role: found[role] - nbytes for role, nbytes in plain.items() if found[role] != nbytes}

    return more


def test_a_relay_fetches_differences_for_its_workers(more_with):
    # The server has a copy, and an answer of half of it, for three workers of its node and for the other node's relay.
    # They have the answer, too, and workers the copy. The relay's copy is what it shows.
    workers = dict.fromkeys(["worker 2", "worker 3", "worker 4"], 552 + 280)
    assert more_with(wire_fetch="bf16") == {"server 0": 4 * (16 + 552 + 280), "relay 0": 280, **workers}


def test_what_encodings_leave_out_is_kept(more_with):
    # The relay keeps it for each of its two rings. A server's slots have room for what isn't encoded within a node.
    kept = {"relay 0": 2 * 552, **dict.fromkeys(["worker 2", "worker 3", "worker 4"], 552)}
    assert more_with(wire="bf16") == kept


def test_workers_hold_shards_where_there_are_no_servers():
    _, *workers = plan(config("sync"), ranks=4)["roles"]
    assert [tuple(rank["shard"]) for rank in workers] == [(0, 46), (46, 92), (92, 138)]
    assert workers[0]["memory"]["parameters"] == 4 * (138 + 46)
    assert workers[0]["memory"]["exchange"] == 4 * 3 * 46


def test_what_sandblaster_keeps_on_servers_is_state():
    found = plan(config("sandblaster"), ranks=3)
    # Besides the parameters: gradient, three more, and a history of 10 + 1 pairs.
    assert found["state_bytes"] == found["roles"][1]["memory"]["state"] == 552 * (4 + 2 * 11)
    assert found["roles"][1]["memory"]["exchange"] > 0


def test_rows_of_the_inverse_hessian_are_state():
    algorithm = {"name": "sandblaster", "method": "ssbroyden"}
    found = plan(config(algorithm=algorithm, topology={"servers": 2}), ranks=4)
    # Besides the parameters: gradient and four more of float32, and a row of float64 for each parameter.
    assert found["state_bytes"] == 138 * (4 * 5 + 8 * 138)
    for rank in found["roles"][1:3]:
        assert rank["memory"]["state"] == 69 * (4 * 5 + 8 * 138)
        assert rank["memory"]["checkpoint"] == rank["memory"]["state"] + 69 * 4


def test_a_shared_vector_is_counted_once():
    _, *workers = plan(config("hogwild"), ranks=4)["roles"]
    assert sum(rank["memory"]["parameters"] for rank in workers) == 552 * (3 + 1)
    assert sum(rank["memory"]["state"] for rank in workers) == 552
    assert not any(rank["memory"]["exchange"] or rank["memory"]["evaluation"] for rank in workers)


def test_a_model_of_a_factory_has_sizes_only(tmp_path, monkeypatch):
    (tmp_path / "planned_model.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    found = plan(config(model={"factory": "planned_model:make"}), ranks=3)
    assert (found["parameters"], found["parameter_bytes"], found["layers"]) == (1000, 8000, None)
    assert found["roles"][2]["memory"]["activations"] == 0
    assert "layer" not in as_text(found)


@pytest.mark.parametrize(
    ("algorithm", "ranks", "topology"), [("downpour", 4, {}), ("diloco", 4, {}), ("downpour", 8, {"relay": True})]
)
def test_no_rank_needs_memory_for_each_epoch(algorithm, ranks, topology):
    virtual = {"ranks_per_node": 4}
    short, long = (
        plan(config(algorithm, run={"epochs": n}, topology=topology, virtual=virtual), ranks) for n in (1, 100_000_000)
    )
    assert [each["memory"] for each in long["roles"]] == [each["memory"] for each in short["roles"]]


def test_a_network_of_1700_million_parameters_takes_no_memory():
    layers = [{"type": "dense", "units": 41_000}]
    data = {"source": "synthetic", "shape": [41_000], "classes": 41_000}
    large = from_dict({"data": data, "model": {"layer": layers}})
    tracemalloc.start()
    found = plan(large, ranks=1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found["parameters"] == 41_000 * 41_001
    assert peak < 5e6


def test_the_text_is_aligned():
    text = as_text(plan(config(), ranks=5)).splitlines()
    assert text == [
        "run: 138 parameters (552 B) of float32, gradient 552 B, rule's state 552 B",
        "",
        "layer    type   outputs  parameters  bytes  operations",
        "0-dense  dense  7                98  392 B         182",
        "top      dense  5                40  160 B          70",
        "in all                          138  552 B         252",
        "operations: of floating point, forward, for a sample; with backward about 3 times as many, 756",
        "activations, their gradients and buffers: 2.88 kB for a batch of 30",
        "",
        "rank    role           shard     parameters  gradient  rule's state  exchange  activations  evaluation"
        "  checkpoint   in all",
        "0       coordinator                                                    163 kB                         "
        "               163 kB",
        "1       server 0       0 to 138       552 B                   552 B   12.8 kB                         "
        "      1.1 kB    15 kB",
        "2 to 4  worker 0 to 2                 552 B     552 B                               9.6 kB       552 B"
        "              11.3 kB",
        "5 ranks of one node: 212 kB in all, besides Python and its libraries",
    ]


def test_the_command(mpidl_here):
    ended = mpidl_here("plan", DIGITS, "--ranks", "4", "--set", "topology.servers=2", "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["parameters"] == 17_226
    assert [rank["role"] for rank in found["roles"]] == ["coordinator", "server 0", "server 1", "worker 0"]
    assert "proposal" not in found
    ended = mpidl_here("plan", DIGITS)
    assert ended.stdout.startswith("digits: 17,226 parameters (68.9 kB) of float32")
    assert "rank" not in ended.stdout


def test_a_proposal_and_its_application(mpidl_here, tmp_path):
    job = tmp_path / "job.toml"
    text = DIGITS.read_text() + "\n# Slow links.\n[virtual]\ncompute = 1e-3\nbandwidth = 1e7\n"
    job.write_text(text)
    ended = mpidl_here("plan", job, "--ranks", "5", "--apply")
    assert ended.returncode == 0, ended.stderr
    proposed = int(ended.stdout.partition("proposed: ")[2].split()[0])
    assert proposed > 1
    assert ended.stderr == f"mpidl: {job}: topology.servers = {proposed}\n"
    assert job.read_text() == text.replace("\nservers = 1 ", f"\nservers = {proposed} ")
    found = json.loads(mpidl_here("plan", job, "--ranks", "5", "--json").stdout)
    assert found["proposal"]["servers"] == proposed
    assert found["parameters"] == 17_226


def test_a_run_begins_with_its_size(mpidl_here):
    ended = mpidl_here("train", DIGITS, "--set", "run.steps=1")
    assert ended.returncode == 0
    assert ended.stderr.splitlines()[0].endswith("  runs/digits: 17,226 parameters (68.9 kB)")


def test_the_plan_of_a_run_is_that_of_its_configuration(mpidl_here, tmp_path):
    (tmp_path / "runs" / "x").mkdir(parents=True)
    (tmp_path / "runs" / "x" / "config.toml").write_text(Path(DIGITS).read_text())
    plans = [json.loads(mpidl_here("plan", given, "--json").stdout) for given in ("runs/x", "runs/x/config.toml")]
    assert plans[0] == plans[1]
    ended = mpidl_here("plan", "runs/x", "--ranks", "4", "--apply")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert ended.stderr == "mpidl: --apply: runs/x is a directory, expected a configuration's file\n"


def test_no_mpi_is_needed(bare_environment):
    code = (
        "import sys; from mpidl.cli import main\n"
        f"main(['plan', {str(DIGITS)!r}, '--ranks', '4'])\n"
        "print(*[name for name in sys.modules if name.startswith('mpi4py')], file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], env=bare_environment, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "\n")


def test_one_process_is_enough(mpidl_here):
    ended = mpidl_here("plan", DIGITS, OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="2")
    assert ended.stderr == "mpidl: plan: runs in one process, without mpirun\n"
    assert ended.returncode == 2


def test_too_few_ranks_on_nodes_of_few_cores(capsys, monkeypatch):
    monkeypatch.setattr("mpidl.runs.proposal.cores", lambda config: 2)
    assert main(["plan", str(DIGITS), "--nodes", "2,1,2"]) == 2
    assert capsys.readouterr().err.startswith("mpidl: --nodes 1 --ranks-per-node 2: 2 ranks are too few: ")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("4", [4]), ("1,2,4", [1, 2, 4]), ("1-8", [*range(1, 9)]), ("16, 1-2,4 - 5", [16, 1, 2, 4, 5])],
)
def test_numbers_and_ranges_of_nodes(text, numbers):
    assert parse(["plan", "job.toml", "--nodes", text]).nodes == numbers


def test_numbers_of_nodes_are_compared(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    arguments = ["plan", str(DIGITS), "--nodes", "1,2", "--ranks-per-node", "4", "--set", "topology.relay=false"]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "digits: 43,110 samples to the end; 4 ranks on each node"
    assert [line.split()[0] for line in lines[3:5]] == ["1", "2"]
    assert main([*arguments, "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    booked = json.loads(line)
    assert [row["nodes"] for row in booked["rows"]] == [1, 2]
    assert booked["command"].startswith(f"mpidl submit {DIGITS} --nodes {booked['best']} --ranks-per-node 4 --time 0:")
