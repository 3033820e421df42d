"""What a virtual cluster is told of a run."""

import numpy as np
import pytest

from mpidl.engines.totals import Totals, from_status, timing
from mpidl.transport.protocol import SERVER_STATUS, WORKER_STATUS


def test_durations_of_two_workers_and_two_servers():
    workers, servers = np.zeros(2, WORKER_STATUS), np.zeros(2, SERVER_STATUS)
    workers["batches"], workers["pushes"] = [3, 5], [3, 5]
    gradients = [[0.1, 0.2, 0.3], [0.2] * 5]
    workers["computing_seconds"] = [sum(each) for each in gradients]
    workers["computing_squares"] = [sum(second**2 for second in each) for each in gradients]
    workers["overhead_seconds"] = [0.02, 0.06]
    workers["fetching_seconds"], workers["pushing_seconds"] = 0.5, 0.25
    workers["bytes_fetched"], workers["bytes_pushed"] = 100, 200
    servers["busy_seconds"] = [0.3, 0.5]
    measured = timing(from_status(0.0, workers, servers))
    everything = np.concatenate(gradients)
    assert measured["compute"] == pytest.approx(everything.mean() + 0.08 / 8)
    assert measured["compute_deviation"] == pytest.approx(everything.std() / measured["compute"])
    assert measured["service"] == pytest.approx(0.8 / 2 / 8)
    assert measured["bandwidth"] == pytest.approx(600 / 1.5)


@pytest.mark.parametrize(
    ("waiting", "shares"),
    [
        (1.0, {"computing": 0.3, "pushing": 0.1, "fetching": 0.2, "waiting": 0.1, "rest": 0.3}),
        # Clocks that begin and end at other moments, one of all, may add up to more than all.
        (14.0, {"computing": 0.15, "pushing": 0.05, "fetching": 0.1, "waiting": 0.7, "rest": 0.0}),
    ],
)
def test_where_the_time_of_two_replicas_of_two_workers_goes(waiting, shares):
    workers, servers = np.zeros(4, WORKER_STATUS), np.zeros(1, SERVER_STATUS)
    workers["first_fetch"], workers["last_push"] = [101, 100, 100, 102], [109, 112, 110, 112]
    workers["evaluation_seconds"] = 2.0
    # Of a replica, the first worker's gradients count.
    workers["computing_seconds"], workers["overhead_seconds"] = [2, 9, 3, 9], [0.5, 9, 0.5, 9]
    workers["pushing_seconds"], workers["fetching_seconds"] = [1, 2, 0, 1], [2, 2, 3, 1]
    workers["waiting_seconds"] = waiting
    totals = from_status(112.0, workers, servers, partitions=2)
    assert totals.spent.shares(totals.trained_seconds) == pytest.approx(shares)


def test_relays_count_the_bytes_of_their_workers():
    workers, servers, relays = np.zeros(3, WORKER_STATUS), np.zeros(1, SERVER_STATUS), np.zeros(2, WORKER_STATUS)
    workers["pushes"], workers["batches"], workers["computing_seconds"] = 4, 4, 1.0
    workers["bytes_pushed"], workers["bytes_fetched"] = [0, 0, 40], [0, 0, 80]
    relays["pushes"], relays["bytes_pushed"], relays["bytes_fetched"] = 3, [30, 20], [31, 21]
    found = from_status(0.0, workers, servers, intermediaries=relays)
    assert (found.pushes, found.bytes_pushed, found.bytes_fetched) == (12, 90, 132)
    assert timing(found) == {}


def test_the_losses_of_epochs_are_those_of_the_first_ranks_of_all_replicas():
    workers, servers = np.zeros(6, WORKER_STATUS), np.zeros(1, SERVER_STATUS)
    workers["epoch"] = [[2, 1], [0, 0], [2, 3], [0, 0], [0, 1], [0, 0]]
    workers["epoch_loss"] = [[8, 4], [9, 9], [4, 2], [9, 9], [7, 6], [9, 9]]
    workers["epoch_weight"] = [[2, 1], [9, 9], [2, 1], [9, 9], [1, 3], [9, 9]]
    found = from_status(0.0, workers, servers, partitions=2)
    assert found.epochs.sums == {0: (7, 1), 1: (10, 4), 2: (12, 4), 3: (2, 1)}
    assert [found.epochs.mean(epoch) for epoch in range(5)] == [7, 2.5, 3, 2, None]


def test_nothing_is_known_before_the_first_gradient():
    assert timing(Totals(now=0.0)) == Totals(now=0.0).spent.shares(1.0) == {}
