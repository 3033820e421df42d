"""What each rank of a job does, from what the ranks have posted; and the file that has it."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from mpidl.engines import monotonic
from mpidl.report.ranks import PostedRanks, RankStatus, StatusFile
from mpidl.topology.roles import assign
from mpidl.transport.protocol import SERVER_STATUS, WORKER_STATUS, State


def posted(roles, shards=None):
    workers = np.zeros(sum(map(len, roles.replicas)), WORKER_STATUS)
    workers["first_fetch"], workers["state"] = 100.0, State.WORKING
    servers = np.zeros(len(roles.servers) if shards is None else shards, SERVER_STATUS)
    servers["state"] = State.WORKING
    return SimpleNamespace(workers=workers, servers=servers, intermediaries=np.zeros(len(roles.relays), WORKER_STATUS))


def job(ranks=5, servers=1, **options):
    roles = assign(["node"] * ranks, servers, **options)
    return roles, posted(roles), PostedRanks(roles, lambda server: [server])


def test_ranks_of_a_job():
    _, rows, ranks = job(ranks=6, standby=1)
    rows.workers["samples"] = 100, 200, 300
    rows.workers["memory"] = 1 << 20
    rows.servers["queue"], rows.servers["busy_seconds"] = 2, 5.0
    found = ranks.at(110.0, rows, range(6), 1 << 21)
    assert [each.role for each in found] == ["coordinator", "server 0", "worker 0", "worker 1", "worker 2", "standby 0"]
    assert [each.state for each in found] == ["working"] * 5 + [None]
    assert [each.memory for each in found] == [1 << 21, None, 1 << 20, 1 << 20, 1 << 20, None]
    assert (found[1].queue, found[1].shares) == (2, {"computing": 0.5, "rest": 0.5})
    assert found[1].staleness is None
    assert [each.samples_per_second for each in found[2:5]] == [None] * 3
    rows.workers["samples"] += 50, 0, 10
    found = ranks.at(112.0, rows, range(6), 0)
    assert [each.samples for each in found] == [None, None, 150, 200, 310, None]
    assert [each.samples_per_second for each in found] == [None, None, 25.0, 0.0, 5.0, None]
    assert found[0].memory is None


def test_shares_of_time():
    _, rows, ranks = job()
    rows.workers["computing_seconds"], rows.workers["overhead_seconds"] = (4, 3, 0), (1, 0, 0)
    rows.workers["pushing_seconds"], rows.workers["fetching_seconds"] = 1, 2
    rows.workers["waiting_seconds"], rows.workers["evaluation_seconds"] = (0, 20, 0), (0, 0, 0)
    found = ranks.at(110.0, rows, range(5), 0)[2:]
    assert found[0].shares == {"computing": 0.5, "pushing": 0.1, "fetching": 0.2, "waiting": 0.0, "rest": 0.2}
    assert found[0].seconds == 10.0
    # More than has passed: clocks of cores that are shared.
    assert sum(found[1].shares.values()) == pytest.approx(1, abs=1e-3)
    assert found[2].shares is None


def test_states_to_the_end():
    _, rows, ranks = job()
    rows.workers["state"], rows.servers["state"] = (0, State.WORKING, State.TRAINED), 0
    assert [each.state for each in ranks.at(101.0, rows, range(5), 0)] == [
        *("starting", "starting", "starting", "working", "trained"),
    ]
    rows.workers["state"], rows.servers["state"] = State.DONE, State.TRAINED
    rows.workers["samples"], rows.workers["last_push"], rows.workers["computing_seconds"] = 100, 120.0, 5
    found = ranks.at(150.0, rows, range(5), 0)
    assert [each.state for each in found] == ["done", "trained", "done", "done", "done"]
    assert [each.samples_per_second for each in found[2:]] == [5.0] * 3
    assert [each.seconds for each in found[1:]] == [20.0] * 4


def test_ranks_that_others_have_taken_over():
    _, rows, ranks = job()
    ranks.at(101.0, rows, range(5), 0)
    found = ranks.at(102.0, rows, [2, 2, 2, 2, 4], 0)
    assert [each.process for each in found] == [2, 2, 2, 2, 4]
    assert [each.state for each in found] == ["working", "working", "working", "dead", "working"]
    assert [each.samples_per_second for each in found[2:]] == [0.0, None, 0.0]


def test_staleness_is_recent():
    _, rows, ranks = job(servers=2)
    for clock, staleness in ((101, 1), (102, 4), (103, None)):
        if staleness is not None:
            rows.servers["staleness"][1, staleness] += 10
            rows.servers["staleness_sum"][1] += 10 * staleness
        found = ranks.at(clock, rows, range(5), 0)
        assert [found[1].staleness, found[2].staleness] == [None, staleness or 4]


def test_servers_with_several_shards_and_relays():
    roles = assign(["a"] * 4 + ["b"] * 4, 1, partitions=1, relay=True)
    rows, ranks = posted(roles, shards=2), PostedRanks(roles, lambda server: [0, 1])
    rows.servers["queue"], rows.servers["memory"] = (1, 2), (5, 6)
    rows.intermediaries["state"], rows.intermediaries["memory"] = State.WORKING, 7
    found = {each.role: each for each in ranks.at(101.0, rows, range(8), 0)}
    assert (found["server 0"].queue, found["server 0"].memory) == (3, 6)
    assert (found["relay 0"].state, found["relay 0"].memory, found["relay 0"].samples) == ("working", 7, None)


def test_a_thousand_ranks_cost_little(calls):
    costs = []
    for count in (100, 1000):
        _, rows, ranks = job(ranks=count, servers=count // 10)
        rows.workers["computing_seconds"] = 1
        ranks.at(101.0, rows, range(count), 0)
        costs.append(calls(lambda rows=rows, ranks=ranks, count=count: ranks.at(102.0, rows, range(count), 0)))
    assert costs[1] < 10 * costs[0]


def test_the_file_is_written_now_and_then(monkeypatch):
    written, now = [], [1000.0]
    monkeypatch.setattr(monotonic, "now", lambda: now[0])
    recorder = SimpleNamespace(status=written.append)
    for every, gap in ((0.1, 1.0), (1.5, 1.5), (60.0, 2.0)):
        file = StatusFile(recorder, every)
        file.ranks = lambda: [RankStatus(rank=0, role="coordinator", process=0)]
        written.clear()
        for step in range(61):
            now[0] += 0.1
            file.write_due(lambda step=step: {"samples": step})
        assert len(written) == pytest.approx(6 / gap, abs=1)
        assert written[0]["record"] == {"samples": 0}
        assert json.dumps(written[0]["pid"])
