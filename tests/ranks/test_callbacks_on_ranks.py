"""Callbacks on the coordinator's rank: the records, and the values that servers have or that were evaluated."""

import numpy as np
import pytest

import mpidl

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize(
    ("algorithm", "topology"),
    [
        (mpidl.Downpour(), {"servers": 2}),
        (mpidl.Sync(), {}),
        (mpidl.Sync(), {"partitions": 3}),
        (mpidl.Downpour(), {"partitions": 2}),
        (mpidl.algorithms.Hogwild(), {}),
        (mpidl.Sandblaster(), {}),
    ],
)
@pytest.mark.mpi(min_size=4)
def test_records_and_values(comm, shared_path, algorithm, topology):
    network = mpidl.Network([mpidl.Dense(12, activation="relu"), mpidl.Dense(10)], (8, 8))
    first, taken = network.parameters.copy(), []

    def keep(record, values):
        taken.append((record, np.concatenate([each.ravel() for each in values.values()])))

    summary = mpidl.train(
        network, mpidl.Digits(), callbacks=[keep], algorithm=algorithm, epochs=3, report=0.05, dir=shared_path,
        name=f"taken-{algorithm.name}-{'-'.join(topology)}", device="cpu", **topology,
    )  # fmt: skip
    (taken,) = filter(None, comm.allgather(taken))
    losses = [record["test_loss"] for record, _ in taken if record["test_loss"] is not None]
    assert losses[-1] == summary["test_loss"]
    assert np.array_equal(taken[-1][1], network.parameters)
    assert not np.array_equal(taken[-1][1], first)
    assert all(np.isfinite(values).all() for _, values in taken)


@pytest.mark.mpi(min_size=3)
def test_one_rank_has_the_records(comm, shared_path):
    records = []
    network = mpidl.Network([mpidl.Dense(10)], (8, 8))
    mpidl.train(
        network, mpidl.Digits(), callbacks=[records.append], epochs=1, dir=shared_path, name="one", device="cpu"
    )
    assert sorted(map(bool, comm.allgather(records)))[-2:] == [False, True]
