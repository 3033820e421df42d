"""Data that belong to workers, on ranks: every sample is counted by its owner, also by a run that is stopped."""

import shutil

import numpy as np
import pytest

import mpidl
from mpidl.algorithms import Hogwild
from mpidl.data.labels import Deal
from mpidl.errors import UsageError

pytestmark = pytest.mark.mpi(min_size=4)
SAMPLES, BATCH, STEPS = 96, 4, 36


class Counter:
    """A model whose parameters count the samples: plain SGD with a rate of 1 adds 1 for each."""

    def __init__(self):
        self.parameters = np.zeros(SAMPLES)

    def loss_and_gradient(self, batch):
        return 0.0, -batch.inputs.sum(axis=0, dtype=float)


def arrays(samples):
    """Return rows of the unit matrix with these numbers, of three labels."""
    x, y = np.eye(SAMPLES, dtype=np.float32)[samples], samples % 3
    return mpidl.Arrays((x, y), (x[:1], y[:1]), classes=3)


def train(shared_path, name, data, steps=STEPS, rate=1.0, **keywords):
    """Return the summary, and how often each sample was trained with."""
    model = Counter()
    summary = mpidl.train(
        model, data, rule=mpidl.Sgd(rate), steps=steps, batch=BATCH, portion=2 * BATCH, dir=shared_path, name=name,
        **keywords,
    )  # fmt: skip
    return summary, np.rint(model.parameters).astype(int)


def check(trained, shares, samples=STEPS * BATCH):
    """Each sample was used as often as the others of its owner, or once more, and owners were counted."""
    summary, found = trained
    assert found.sum() == samples
    assert summary["owner_samples"] == [found[share].sum() for share in shares]
    for share in shares:
        assert np.ptp(found[share]) <= 1


def dealt(replicas):
    return Deal.parse("label:2").shares(np.arange(SAMPLES) % 3, replicas, 0)


@pytest.mark.parametrize("algorithm", [mpidl.Sync(), Hogwild()])
def test_own_samples_are_used_alike_by_a_run_that_goes_on(comm, shared_path, algorithm):
    in_turn, name, data, replicas = algorithm.name == "sync", algorithm.name, arrays(np.arange(SAMPLES)), comm.size - 1
    # The rate undoes the mean of a reduction.
    rate = float(replicas) if in_turn else 1.0
    options = {"algorithm": algorithm, "split": "label:2", "rate": rate, "deterministic": in_turn}
    train(shared_path, name, data, STEPS // 3, **options)
    trained = train(shared_path, name, data, resume=True, **options)
    check(trained, dealt(replicas))


def test_each_of_several_sources_belongs_to_one_worker(comm, shared_path, capfd):
    own = np.array_split(np.arange(SAMPLES), comm.size - 2)
    data = [arrays(each) for each in own]
    check(train(shared_path, "sources", data), own)
    lines = comm.allgather(capfd.readouterr().err)
    line = "data.private: true, and downpour leans towards the data of fast workers: rescaled and ringleader don't"
    assert "".join(lines).count(line) == 1


def test_a_checkpoint_between_pushes_goes_on_with_what_each_worker_has_left(comm, shared_path):
    data, steps = arrays(np.arange(SAMPLES)), 4 * STEPS
    options = {"algorithm": mpidl.Downpour(n_push=3), "split": "label:2", "checkpoint_every": 0.05}
    train(shared_path, "struck", data, steps, debug={"gradient_seconds": 0.004}, **options)
    if comm.rank == 0:
        # As if the run had been killed after the one before.
        shutil.rmtree(max((shared_path / "struck" / "checkpoints").iterdir(), key=lambda each: int(each.name)))
        (shared_path / "struck" / "summary.json").unlink()
    comm.Barrier()
    left = steps - max(int(each.name) for each in (shared_path / "struck" / "checkpoints").iterdir())
    trained = train(shared_path, "struck", data, steps, resume=True, **options)
    assert 0 < left < steps
    check(trained, dealt(comm.size - 2), steps * BATCH)
    with pytest.raises(UsageError, match=rf"saved with data that belong to {comm.size - 2} workers, but there are"):
        train(shared_path, "struck", data, 2 * steps, servers=2, resume=True, **options)
