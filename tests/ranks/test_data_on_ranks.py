"""Data on ranks: every sample is read once in an epoch or, where it belongs to a worker, counted by its owner."""

import shutil

import numpy as np
import pytest

import mpidl
from mpidl.algorithms import Hogwild
from mpidl.data import Batch, Portions
from mpidl.data.labels import Deal
from mpidl.errors import UsageError

pytestmark = pytest.mark.mpi
SAMPLES, EPOCHS = 53, 2
#: Samples that belong to workers, of whom there are several on four ranks.
OWN, BATCH, STEPS = 96, 4, 36
FOUR = pytest.mark.mpi(min_size=4)


class Counted:
    """Samples that are rows of the unit matrix."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return np.eye(SAMPLES, dtype=np.float32)[index], np.zeros(1, np.float32)


class Counter:
    """A model whose parameters count the samples: plain SGD with a rate of 1 adds 1 for each."""

    def __init__(self, samples=SAMPLES):
        self.parameters = np.zeros(samples)

    def loss_and_gradient(self, batch):
        return 0.0, -batch.inputs.sum(axis=0, dtype=float)


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("workers", [0, 2])
def test_every_sample_is_trained_on_once_in_an_epoch(shared_path, workers):
    model = Counter()
    data = mpidl.Indexed(Counted(), Counted(), workers=workers)
    mpidl.train(
        model, data, algorithm=mpidl.Downpour(), rule=mpidl.Sgd(1.0), epochs=EPOCHS, batch=3, portion=6,
        dir=shared_path, name=f"counting-{workers}",
    )  # fmt: skip
    assert model.parameters.tolist() == [EPOCHS] * SAMPLES


class Halves:
    """The even samples in even epochs, and the odd ones in odd epochs, shuffled by NumPy's common generator."""

    def __len__(self):
        return SAMPLES // 2

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(np.random.permutation(np.arange(self.epoch % 2, 2 * len(self), 2)))  # noqa: NPY002


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("algorithm", [mpidl.Downpour(), mpidl.Sync(), mpidl.Sandblaster()])
def test_a_samplers_epochs_without_data_to_evaluate(shared_path, comm, algorithm):
    model = Counter()
    np.random.seed(comm.rank)  # noqa: NPY002
    rule = {} if isinstance(algorithm, mpidl.Sandblaster) else {"rule": mpidl.Sgd(1.0)}
    summary = mpidl.train(
        model, mpidl.Indexed(Counted(), sampler=Halves()), algorithm=algorithm, epochs=3, batch=3, portion=6,
        dir=shared_path, name=f"halves-{algorithm.name}", **rule,
    )  # fmt: skip
    assert (summary["test_loss"], "validation_loss" in summary) == (None, False)
    if isinstance(algorithm, mpidl.Downpour):
        assert summary["samples"] == 3 * (SAMPLES // 2)
        assert model.parameters.tolist() == [2, 1] * (SAMPLES // 2) + [0]


def weigh(samples):
    """Return a batch that counts the sum of its samples' numbers, and one more."""
    inputs = np.stack([inputs for inputs, _ in samples])
    return Batch(inputs, None, weight=1.0 + float(inputs.argmax(axis=1).sum()))


def test_gradients_count_what_their_batches_weigh(comm, shared_path):
    model, workers = Counter(), max(1, comm.size - 1)
    batch = -(-SAMPLES // workers)
    data = mpidl.Indexed(Counted(), Counted(), collate=weigh)
    mpidl.train(
        model, data, algorithm=mpidl.Sync(), rule=mpidl.Sgd(1.0), epochs=1, batch=batch, portion=batch,
        deterministic=True, dir=shared_path, name="weighed",
    )  # fmt: skip
    portions = Portions(SAMPLES, batch, batch, seed=0)
    weights = np.empty(SAMPLES)
    for number in range(workers):
        indices = portions.indices(number)
        weights[indices] = 1 + indices.sum()
    np.testing.assert_allclose(model.parameters, weights / np.unique(weights).sum(), rtol=1e-12)


def arrays(samples):
    """Return rows of the unit matrix with these numbers, of three labels."""
    x, y = np.eye(OWN, dtype=np.float32)[samples], samples % 3
    return mpidl.Arrays((x, y), (x[:1], y[:1]), classes=3)


def train(shared_path, name, data, steps=STEPS, rate=1.0, **keywords):
    """Return the summary, and how often each sample was trained with."""
    model = Counter(OWN)
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
    return Deal.parse("label:2").shares(np.arange(OWN) % 3, replicas, 0)


@FOUR
@pytest.mark.parametrize("algorithm", [mpidl.Sync(), Hogwild()])
def test_own_samples_are_used_alike_by_a_run_that_goes_on(comm, shared_path, algorithm):
    in_turn, name, data, replicas = algorithm.name == "sync", algorithm.name, arrays(np.arange(OWN)), comm.size - 1
    # The rate undoes the mean of a reduction.
    rate = float(replicas) if in_turn else 1.0
    options = {"algorithm": algorithm, "split": "label:2", "rate": rate, "deterministic": in_turn}
    train(shared_path, name, data, STEPS // 3, **options)
    trained = train(shared_path, name, data, resume=True, **options)
    check(trained, dealt(replicas))


@FOUR
def test_each_of_several_sources_belongs_to_one_worker(comm, shared_path, capfd):
    own = np.array_split(np.arange(OWN), comm.size - 2)
    data = [arrays(each) for each in own]
    check(train(shared_path, "sources", data), own)
    lines = comm.allgather(capfd.readouterr().err)
    line = "data.private: true, and downpour leans towards the data of fast workers: rescaled and ringleader don't"
    assert "".join(lines).count(line) == 1


@FOUR
def test_a_checkpoint_between_pushes_goes_on_with_what_each_worker_has_left(comm, shared_path):
    data, steps = arrays(np.arange(OWN)), 4 * STEPS
    options = {"algorithm": mpidl.Downpour(n_push=3), "split": "label:2", "checkpoint_every": 0.05}
    train(shared_path, "struck", data, steps, debug={"gradient_seconds": 0.01}, **options)
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
