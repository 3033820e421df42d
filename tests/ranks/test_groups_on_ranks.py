"""Groups of parameters on the ranks of the test's world."""

import numpy as np
import pytest

import mpidl

pytestmark = pytest.mark.mpi
GROUPS = [{"match": "0-dense.weight", "frozen": True}, {"match": "*.bias", "rate": 0.5, "weight_decay": 0.1}]


def trained(path, algorithm, groups=GROUPS, **options):
    network = mpidl.Network([mpidl.Dense(6, activation="relu"), mpidl.Dense(10)], (8, 8))
    before = network.parameters.copy()
    options = {"rule": algorithm.default_rule and mpidl.Adagrad(0.02), "device": "cpu"} | options
    mpidl.train(network, mpidl.Digits(), algorithm=algorithm, groups=groups, dir=path, steps=24, **options)
    return before, network.parameters


@pytest.mark.parametrize(
    "algorithm",
    [
        mpidl.Downpour(wire="onebit", n_push=2),
        mpidl.algorithms.Averaging(tau=3),
        mpidl.algorithms.Hogwild(),
        mpidl.algorithms.Sandblaster(),
    ],
    ids=lambda algorithm: algorithm.name,
)
def test_frozen_parameters_keep_their_bits_on_every_rank(comm, shared_path, monkeypatch, algorithm):
    if algorithm.name == "downpour":  # Pushes are encoded between nodes.
        monkeypatch.setenv("MPIDL_RANKS_PER_NODE", "1")
    if comm.size == 2 and algorithm.name in ("downpour", "sandblaster"):
        pytest.skip("2 ranks have no worker beside a server")
    before, after = trained(shared_path, algorithm)
    assert after[:384].tobytes() == before[:384].tobytes()
    assert np.count_nonzero(after[384:] != before[384:]) > 60


@pytest.mark.mpi(min_size=3)
def test_one_worker_and_any_number_of_servers_is_serial_sgd_with_groups(comm, shared_path):
    servers = comm.size - 2
    _, found = trained(shared_path, mpidl.Downpour(), servers=servers, rule=mpidl.Sgd(0.1), batch=32)
    network = mpidl.Network([mpidl.Dense(6, activation="relu"), mpidl.Dense(10)], (8, 8))
    train = mpidl.Digits().open().train
    portions = mpidl.data.Portions(train.samples, 32, 128, seed=0)
    parts = [network.layout[name].range for name in ("0-dense/bias", "1-dense/weight", "1-dense/bias")]
    x, steps = network.parameters, 0
    for portion in range(6):
        for indices in portions.batches(portion):
            gradient = network.loss_and_gradient(train.gather(indices))[1]
            for part, rate, decay in zip(parts, (0.05, 0.1, 0.05), (0.1, 0.0, 0.1), strict=True):
                own = slice(*part)
                decaying = gradient[own] + np.float32(decay) * x[own]
                x[own] -= np.float32(rate) * decaying
            steps += 1
    assert steps == 24
    assert found.tobytes() == x.tobytes()
