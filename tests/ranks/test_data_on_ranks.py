"""Data of one's own on ranks: every sample is read once in an epoch, and batches count what they weigh."""

import numpy as np
import pytest

import mpidl
from mpidl.data import Batch, Portions

pytestmark = pytest.mark.mpi
SAMPLES, EPOCHS = 53, 2


class Counted:
    """Samples that are rows of the unit matrix."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return np.eye(SAMPLES, dtype=np.float32)[index], np.zeros(1, np.float32)


class Counter:
    """A model whose parameters count the samples: plain SGD with a rate of 1 adds 1 for each."""

    def __init__(self):
        self.parameters = np.zeros(SAMPLES)

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
