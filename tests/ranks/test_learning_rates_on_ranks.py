"""On ranks, too, records have the learning rates at that time, and the norm of a recent gradient."""

import json

import pytest

import mpidl

pytestmark = pytest.mark.mpi(min_size=4)


@pytest.mark.parametrize(
    ("algorithm", "server", "worker"),
    [
        ({"name": "downpour", "rate": 0.0625}, 0.25, 0.0625),
        ({"name": "sync"}, 0.25, None),
        ({"name": "hogwild"}, 0.25, None),
        ({"name": "easgd", "rate": 0.5}, None, 0.5),
    ],
)
def test_rates_follow_their_schedule(comm, shared_path, algorithm, server, worker):
    config = {
        "run": {"dir": str(shared_path), "epochs": 8, "report": 1e-9}, "data": {"source": "digits", "batch": 64},
        "model": {"layer": [{"type": "dense", "units": 10}]}, "algorithm": algorithm,
        "rate": {"schedule": "steps", "epochs": [4], "factor": 0.5}, "debug": {"gradient_seconds": 0.01},
        **({"server": {"rule": "sgd", "rate": 0.25}} if server else {}),
    }  # fmt: skip
    mpidl.train(config=config)
    found = [json.loads(line) for line in (shared_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for name, rate in (("server_rate", server), ("worker_rate", worker)):
        rates = [record[name] for record in found]
        if rate is None:
            assert {*rates} == {None}
        else:
            assert rates[-1] == rate / 2
            assert rate in rates
            assert rates[0] == rate
            assert {*rates} <= {rate, 0.75 * rate, rate / 2}  # one of two replicas is ahead
    assert found[-1]["gradient_norm"] > 0


def test_the_norm_of_a_cut_replica_is_that_of_the_whole_gradient(comm, shared_path):
    norms = []
    for partitions in (1, 2):
        config = {
            "run": {"dir": str(shared_path / str(partitions)), "steps": 1}, "data": {"source": "digits", "batch": 1437},
            "model": {"layer": [{"type": "dense", "units": 20}, {"type": "dense", "units": 10}]},
            "topology": {"partitions": partitions, "servers": comm.size - 1 - partitions},
        }  # fmt: skip
        mpidl.train(config=config)
        records = (shared_path / str(partitions) / "run" / "metrics.jsonl").read_text().splitlines()
        norms.append(json.loads(records[-1])["gradient_norm"])
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)
