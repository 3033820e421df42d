"""Rounds with a slow worker: a quorum has each push in one round or drops it, and dynamic rounds end together."""

from statistics import median

import numpy as np
import pytest
from small_runs import dataset

import mpidl
from mpidl.algorithms import Averaging, BackupSync, Diloco, Fedprox
from mpidl.algorithms.requests import Gradient, Reduce
from mpidl.rules import Sgd
from mpidl.shards.policies import FirstOfStep
from mpidl.shards.shard import Shard

pytestmark = pytest.mark.mpi(min_size=4)
SAMPLES, EPOCHS, BATCH = 101, 3, 4
#: Seconds of a window that ends before the slow worker has pushed, and of one that never does.
SHORT, LONG = 1e-3, 600.0


class Log:
    """What a server did with each push: a round for each update, as (worker, number of its push), and the drops."""

    def __init__(self, monkeypatch):
        self.rounds, self.dropped, self._pushes, self._last = [], [], {}, {}
        for kind, name in ((FirstOfStep, "apply_chunk"), (FirstOfStep, "end_push"), (Shard, "update")):
            method, noted = getattr(kind, name), getattr(self, name)

            def call(own, *arguments, method=method, noted=noted):
                noted(own, *arguments)
                method(own, *arguments)

            monkeypatch.setattr(kind, name, call)

    def apply_chunk(self, policy, shard, chunk, values, push):
        self._last[push.worker] = push.worker, self._pushes.setdefault(push.worker, 0)
        self._pushes[push.worker] += 1

    def update(self, shard, chunk, *arguments):
        givers = np.flatnonzero(shard.policy.state()["givers"][chunk])
        self.rounds.append([self._last[worker] for worker in givers.tolist()])

    def end_push(self, policy, shard, push):
        if not policy.state()["taken"][push.worker]:
            self.dropped.append(self._last[push.worker])


def train(comm, problem, algorithm, shared_path, monkeypatch, watch, **debug):
    """Train with a slow worker; return the summary, the server's log, and each worker's gradients in order."""
    log, (model, split), computed = Log(monkeypatch), problem, []

    def see(request, gradient, parameters):
        if isinstance(request, Gradient):
            computed.append(gradient if gradient is None else gradient.copy())

    watch(type(algorithm), see)
    summary = mpidl.train(
        model, dataset(split), algorithm=algorithm, rule=Sgd(1.0), epochs=EPOCHS,
        batch=BATCH, portion=BATCH, dir=shared_path, debug=debug,
    )  # fmt: skip
    logs = comm.allgather((log.rounds, log.dropped))
    return summary, logs[1], comm.allgather(computed)[2:]


SLOW = {"gradient_seconds": 0.004, "slow_worker": 0, "slow_factor": 8.0}


@pytest.mark.parametrize("grace", [0.0, SHORT, LONG])
@pytest.mark.parametrize("name", ["diloco", "backup_sync"])
def test_each_push_is_in_one_round_or_dropped(comm, shared_path, tally, name, grace, monkeypatch, watch):
    workers, (model, split) = comm.size - 2, tally()
    quorum, start = workers - 1, model.parameters.copy()
    algorithm = (
        BackupSync(backup=1, grace=grace)
        if name == "backup_sync"
        else Diloco(rate=1.0, window=1, inner="sgd", quorum=quorum, grace=grace)
    )
    summary, (rounds, dropped), pushed = train(comm, (model, split), algorithm, shared_path, monkeypatch, watch, **SLOW)
    assert summary["samples"] == EPOCHS * SAMPLES
    assert summary["dropped"] == len(dropped)
    # Every push of every worker is in one round or dropped, and in none twice.
    every = [(worker, number) for worker, own in enumerate(pushed) for number in range(len(own))]
    assert sorted([*(each for giving in rounds for each in giving), *dropped]) == every
    assert summary["pushes"] == len(every)
    # The slow worker is waited for as long as it takes, or hardly ever in time.
    assert (len(dropped) == 0) == (grace == LONG)
    updates = [np.mean([pushed[worker][number] for worker, number in giving], axis=0) for giving in rounds]
    expected = start - np.sum(updates, axis=0)
    if comm.rank > 1:
        assert model.parameters == pytest.approx(expected, rel=1e-12)


def test_a_worker_that_is_late_gives_its_gradient_up_and_begins_anew(comm, shared_path, tally, monkeypatch, watch):
    workers, algorithm = comm.size - 2, BackupSync(backup=1, restart=True)
    summary, (rounds, dropped), computed = train(comm, tally(), algorithm, shared_path, monkeypatch, watch, **SLOW)
    # What it gave up is no push, and its batch comes again: every batch is pushed once.
    batches = EPOCHS * -(-SAMPLES // BATCH)
    finished = [len(own) - sum(gradient is None for gradient in own) for own in computed]
    assert (summary["samples"], sum(finished), summary["pushes"]) == (EPOCHS * SAMPLES, batches, batches)
    # More were given up in time than were late on their way.
    assert len(computed[0]) - finished[0] > len(dropped)
    assert sum(map(len, rounds)) + len(dropped) == batches
    assert all(len(giving) == workers - 1 for giving in rounds[: len(rounds) // 2])


@pytest.mark.parametrize(
    ("transport", "algorithm"), [("windows", BackupSync(backup=0)), ("messages", BackupSync(backup=1, restart=True))]
)
def test_a_worker_that_waits_for_a_round_holds_up_no_checkpoint(comm, shared_path, tally, transport, algorithm):
    """It marks the checkpoint when the round is over, by pushes of others that have marked it before."""
    model, split = tally()
    summary = mpidl.train(
        model, dataset(split), algorithm=algorithm, rule=Sgd(1.0), epochs=3 * EPOCHS,
        batch=BATCH, portion=BATCH, dir=shared_path, debug=SLOW, checkpoint_every=1e-3, keep=100,
        config={"topology": {"transport": transport}},
    )  # fmt: skip
    assert summary["samples"] == 3 * EPOCHS * SAMPLES
    saved = [path for path in (shared_path / summary["run_dir"] / "checkpoints").iterdir() if path.name.isdecimal()]
    assert len(saved) > 3


def test_a_quorum_of_all_drops_nothing(comm, shared_path, tally, monkeypatch, watch):
    workers = comm.size - 2
    algorithm = Diloco(rate=1.0, window=2, inner="sgd", quorum=workers)
    summary, (rounds, dropped), _ = train(comm, tally(), algorithm, shared_path, monkeypatch, watch, **SLOW)
    assert dropped == []
    assert sum(map(len, rounds)) == summary["pushes"]
    assert all(len(giving) == workers for giving in rounds[: len(rounds) // 2])


def test_more_than_there_are_replicas_is_one_line(comm, shared_path, tally, monkeypatch, watch):
    workers = comm.size - 2
    with pytest.raises(mpidl.UsageError) as error:
        train(comm, tally(), Diloco(quorum=workers + 1), shared_path, monkeypatch, watch)
    assert str(error.value) == (f"algorithm.quorum: {workers + 1}, expected at most {workers}, the number of replicas")


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
        model, dataset(split), algorithm=algorithm, batch=4, portion=4, epochs=8,
        dir=shared_path, debug={"gradient_seconds": 0.01, "slow_worker": 0, "slow_factor": 4.0},
    )  # fmt: skip
    found = comm.allgather(made)
    assert sum(map(sum, found)) == 8 * 26
    assert found[1][0] == found[2][0] == WINDOW
    assert 1 <= median(found[1][1:]) <= 3
    assert all(median(each[1:-1]) >= 6 for each in found[2:])
