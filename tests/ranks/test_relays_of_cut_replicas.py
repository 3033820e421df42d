"""What the ranks of a cut replica push by way of a relay is one push, and in a checkpoint if before their marks."""

import json
import time

import numpy as np
import pytest
from test_relays import SIZE, give_order, play, saved, triangle

from mpidl.parameters import split

way = pytest.fixture(params=["windows", "mixed", "messages"])(lambda request: request.param)
#: 64-33-10
PARAMETERS = 65 * 33 + 34 * 10


@pytest.mark.mpi(min_size=4)
def test_a_checkpoint_has_whole_pushes_of_both_ranks_though_these_come_apart(comm, shared_path, way, monkeypatch):
    if comm.size > 4:
        pytest.skip("takes 4 ranks")

    def act(pusher, among, coordinator):
        random = np.random.default_rng(among.rank)
        for order in (1, 2, 3):
            give_order(coordinator, order)
            for _ in range(3):
                time.sleep(random.exponential(3e-3))
                pusher.push()
            before = pusher.pushes
            time.sleep(0.02 * among.rank)
            pusher.mark(order)
            pusher.push()
            pusher.fetch()
            if coordinator is not None:
                files = []
                pusher.until(
                    lambda files=files, order=order: (
                        files.extend(coordinator.posted.saved())
                        or sum(len(each.shards) for each in files if each.order == order) == 2
                    )
                )
                assert (saved(shared_path, order, range(2)) == triangle(before)).all()
            pusher.meet(among)

    roles, found = play(comm, shared_path, way, 1, monkeypatch, act, late=True, partitions=2)
    relayed = comm.bcast(None if comm.rank else found.status.figures[["pushes", "bytes_pushed"]].tolist())
    assert relayed[1] == relayed[0] * SIZE * 8
    if comm.rank in roles.servers:
        assert [each.shard.range for each in found.served] == split(SIZE, 2)
        assert all((each.shard.parameters == triangle(12)).all() for each in found.served)
        assert all(each.shard.pushes == relayed[0] for each in found.served)


def test_a_job_of_cut_replicas_learns_through_a_relay(mpidl, tmp_path):
    """Of two nodes, the first has coordinator, server and two replicas, the second a relay with two replicas."""
    (tmp_path / "digits.toml").write_text(
        'run = {name = "digits", epochs = 8}\ndata = {source = "digits", batch = 32}\n'
        'server = {rule = "sgd", rate = 0.05}\ntopology = {relay = true, partitions = 2}\n'
        'model.layer = [{type = "dense", units = 33, activation = "relu"}, {type = "dense", units = 10}]\n'
    )
    done = mpidl("train", "digits.toml", "-n", 11, MPIDL_RANKS_PER_NODE="6")
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "runs" / "digits" / "summary.json").read_text())
    assert (summary["relays"], summary["replicas"], summary["partitions"]) == (1, 4, 2)
    assert summary["test_accuracy"] > 0.88
    assert summary["pushes"] == 8 * 45
    # Of each push, a server receives two parts.
    received = sum(summary["staleness_histogram"]) / 2
    assert summary["bytes_pushed"] == summary["bytes_fetched"] == received * 4 * PARAMETERS
