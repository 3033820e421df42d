"""Data that belong to workers, on ranks: every sample is counted by its owner, also by a run that is stopped."""

import numpy as np
import pytest

import mpidl
from mpidl.algorithms import Hogwild
from mpidl.data.dealing import Deal
from mpidl.errors import UsageError

pytestmark = pytest.mark.mpi(min_size=3)
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


def check(found, shares, samples=STEPS * BATCH):
    """Each sample was used as often as the others of its owner, or once more."""
    assert found.sum() == samples
    for share in shares:
        assert np.ptp(found[share]) <= 1


def dealt(replicas, seed=0):
    return Deal.parse("label:2").shares(np.arange(SAMPLES) % 3, replicas, seed)


@pytest.mark.parametrize("algorithm", [mpidl.Downpour(n_push=3, n_fetch=2), mpidl.Sync(), Hogwild()])
def test_own_samples_are_used_alike_by_a_run_that_goes_on(comm, shared_path, algorithm):
    name, data = algorithm.name, arrays(np.arange(SAMPLES))
    replicas = comm.size - (2 if name == "downpour" else 1)
    # The rate undoes the mean of a reduction.
    options = {"algorithm": algorithm, "split": "label:2", "rate": float(replicas) if name == "sync" else 1.0}
    options["deterministic"] = name == "sync"
    train(shared_path, name, data, STEPS // 3, **options)
    summary, found = train(shared_path, name, data, resume=True, **options)
    assert (summary["replicas"], summary["samples"]) == (replicas, STEPS * BATCH)
    check(found, dealt(replicas))
    assert summary["owner_samples"] == [found[share].sum() for share in dealt(replicas)]


def test_each_of_several_sources_belongs_to_one_worker(comm, shared_path, capfd):
    own = np.array_split(np.arange(SAMPLES), comm.size - 2)
    data = [arrays(each) for each in own]
    _, found = train(shared_path, "sources", data)
    check(found, own)
    lines = comm.allgather(capfd.readouterr().err)
    line = "data.private: true, and downpour leans towards the data of fast workers: rescaled and ringleader don't"
    assert "".join(lines).count(line) == 1


@pytest.mark.mpi(min_size=4)
def test_other_numbers_of_workers_cannot_go_on(comm, shared_path):
    data = arrays(np.arange(SAMPLES))
    train(shared_path, "fewer", data, split="label:2")
    with pytest.raises(UsageError, match=rf"saved with data that belong to {comm.size - 2} workers, but there are"):
        train(
            shared_path, "fewer", data, 2 * STEPS, split="label:2", algorithm=mpidl.Downpour(), servers=2, resume=True
        )
