"""Workers of different speeds end their rounds together where the algorithm lets them."""

from statistics import median

import pytest

import mpidl
from mpidl.algorithms import Averaging, Diloco, Fedprox
from mpidl.algorithms.requests import Reduce
from mpidl.data import Dataset

pytestmark = pytest.mark.mpi(min_size=4)
WINDOW = 8


@pytest.mark.parametrize(
    "algorithm",
    [Averaging(tau=WINDOW, dynamic=True), Fedprox(window=WINDOW, dynamic=True), Diloco(window=WINDOW, dynamic=True)],
    ids=lambda algorithm: algorithm.name,
)
def test_a_slow_worker_makes_fewer_steps_and_counts_less(comm, shared_path, least_squares, algorithm, watch):
    made = []

    def see(request, answer, parameters):
        if isinstance(request, Reduce) and request.vector is not None:
            made.append(int(request.weight))

    watch(type(algorithm), see)
    model, split = least_squares()
    mpidl.train(
        model, Dataset("test", (13,), None, split, split), algorithm=algorithm, batch=4, portion=4, epochs=8,
        dir=shared_path, debug={"gradient_seconds": 0.01, "slow_worker": 0, "slow_factor": 4.0},
    )  # fmt: skip
    found = comm.allgather(made)
    assert sum(map(sum, found)) == 8 * 26
    assert found[1][0] == found[2][0] == WINDOW
    assert 1 <= median(found[1][1:]) <= 3
    assert all(median(each[1:-1]) >= 6 for each in found[2:])
