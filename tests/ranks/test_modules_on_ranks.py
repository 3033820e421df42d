"""PyTorch modules on the ranks of the test's world."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import mpidl  # noqa: E402
from mpidl.algorithms import ALGORITHMS  # noqa: E402
from mpidl.data import Portions  # noqa: E402
from rows import long_but  # noqa: E402
from torch_modules import cnn, functional, mlp, transformer  # noqa: E402
from zoo import differences  # noqa: E402

pytestmark = pytest.mark.mpi(min_size=4)


def train(module, shared_path, **options):
    options = {"loss": "cross_entropy", "dir": str(shared_path), "batch": 64, "portion": 64, "seed": 5} | options
    return mpidl.train(module, mpidl.Digits(), **options)


#: One of each way to exchange, and what keeps more than parameters.
DAILY = ("downpour", "easgd", "diloco", "sync", "hogwild", "sandblaster")


@pytest.mark.parametrize("name", long_but(DAILY, sorted(set(ALGORITHMS) - {"stacking"})))
def test_every_algorithm_trains_a_module(comm, shared_path, name):
    algorithm = ALGORITHMS[name]()
    # Sandblaster minimises one function: statistics are not part of it.
    module = transformer() if algorithm.coordinated else cnn()
    before = loss_of_batch(module)
    summary = train(module, shared_path, algorithm=algorithm, epochs=3)
    assert np.isfinite(summary["test_loss"])
    state = comm.allgather({key: value.numpy() for key, value in module.state_dict().items() if value.numel() > 1})
    for key, value in state[0].items():
        assert all(np.array_equal(value, other[key]) for other in state), key
    assert loss_of_batch(module) < before - 0.05


def loss_of_batch(module):
    """Return the loss of all training samples as one batch, with its own statistics: running ones lag behind.

    After so few steps, the loss with running statistics depends on the order of pushes more than on training.
    """
    split = mpidl.Digits().open().train
    batch = split.gather(np.arange(split.samples))
    with torch.no_grad():
        outputs = copy.deepcopy(module).train()(torch.from_numpy(batch.inputs))
    return float(functional.cross_entropy(outputs, torch.from_numpy(batch.targets)))


@pytest.mark.parametrize("options", [{"algorithm": "downpour"}, {"algorithm": "sync"}, {"partitions": 2, "stages": 2}])
def test_the_terms_of_a_loss_are_reported(shared_path, options):
    def terms(outputs, targets):
        return {"entropy": functional.cross_entropy(outputs, targets), "size": outputs.square().mean()}

    summary = train(mlp(), shared_path, loss=terms, loss_weights={"size": 0.5}, epochs=1, **options)
    assert summary["test_loss"] == pytest.approx(summary["test_entropy"] + 0.5 * summary["test_size"], rel=1e-5)


@pytest.mark.parametrize(
    "options", [{"algorithm": "downpour"}, {"algorithm": "sync"}, {"partitions": 2, "stages": 2, "micro_batches": 2}]
)
def test_means_are_over_the_labels_that_count_whoever_computes_them(shared_path, options):
    """Workers evaluate parts in which few labels count, and others in which nearly all do."""
    split = mpidl.Digits().open().train
    inputs, labels = split.gather(np.arange(700))[:2]
    labels = np.where(np.random.default_rng(0).random(700) < np.linspace(0, 1.2, 700), -100, labels)
    module, loss = mlp(), torch.nn.CrossEntropyLoss()
    summary = mpidl.train(
        module, mpidl.Arrays((inputs, labels), (inputs, labels)), loss=loss, epochs=2, batch=20, portion=20,
        dir=shared_path, **options,
    )  # fmt: skip
    with torch.no_grad():
        outputs = module(torch.from_numpy(inputs))
    assert summary["test_loss"] == pytest.approx(loss(outputs, torch.from_numpy(labels)).item(), rel=1e-4)
    right = (outputs.argmax(1).numpy() == labels).sum() / (labels >= 0).sum()
    assert summary["test_accuracy"] == pytest.approx(right, abs=1e-9)


class Pixels(torch.nn.Module):
    """Sums of rows of the pixels' values at their places, which are in a table."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.rows = torch.nn.EmbeddingBag(64 * 17, 10, mode="sum", sparse=True)
        torch.nn.init.normal_(self.rows.weight, std=0.03 + 0.01 * seed)
        self.bias = torch.nn.Parameter(torch.zeros(10))

    def forward(self, images):
        values = images if images.is_floating_point() else images / 255
        return self.rows((16 * values.flatten(1)).long() + 17 * torch.arange(64)) + self.bias


def test_every_rank_has_the_trained_rows_of_a_table(comm, shared_path):
    """First values are those of rank 0: as with other weights, those of others may differ."""
    module = Pixels(comm.rank)
    before = loss_of_batch(module)
    summary = train(module, shared_path, algorithm="downpour", rule="adagrad", lr=0.05, epochs=2)
    assert summary["rows"] <= 64 * 17
    weights = comm.allgather(module.rows.weight.detach().numpy())
    assert all(np.array_equal(each, weights[0]) for each in weights)
    assert loss_of_batch(module) < before - 0.5


@pytest.mark.parametrize("make", [mlp, cnn, transformer])
def test_one_worker_is_a_plain_loop_on_ranks_too(comm, shared_path, make):
    module, plain = make(), make()
    train(module, shared_path, rule=mpidl.Sgd(0.05), steps=40, servers=comm.size - 2)
    loop(plain, [[batch] for batch in steps(40)])
    for name, parameter in plain.named_parameters():
        assert torch.equal(module.get_parameter(name), parameter), name


def test_one_worker_clips_and_penalises_as_a_plain_loop(comm, shared_path):
    module, plain = mlp(dtype=torch.float64), mlp(dtype=torch.float64)
    train(module, shared_path, rule=mpidl.Sgd(0.05), steps=20, servers=comm.size - 2, clip=0.5, l2=0.1)
    clipped = 0
    for inputs, targets in steps(20):
        plain.zero_grad()
        torch.nn.functional.cross_entropy(plain(inputs.double()), targets).backward()
        for parameter in plain.parameters():
            if parameter.ndim > 1:
                parameter.grad += 0.1 * parameter.detach()
        clipped += torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5) > 0.5
        with torch.no_grad():
            for parameter in plain.parameters():
                parameter -= 0.05 * parameter.grad
    assert clipped
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(module.get_parameter(name), parameter, rtol=1e-5, atol=1e-7)


def test_sync_is_the_mean_of_the_replicas_gradients(comm, shared_path):
    module, plain = (mlp(dtype=torch.float64) for _ in range(2))
    replicas = comm.size - 1
    options = {"deterministic": True, "rule": mpidl.Sgd(0.05), "steps": 10 * replicas}
    train(module, shared_path, algorithm=mpidl.Sync(), **options)
    batches = list(steps(10 * replicas))
    loop(plain, [batches[start : start + replicas] for start in range(0, len(batches), replicas)])
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(module.get_parameter(name), parameter, rtol=1e-12, atol=1e-12)


def test_a_deterministic_run_with_dropout_is_repeatable(comm, shared_path):
    trained = []
    for noise in range(2):
        module = transformer(dropout=0.2)
        torch.manual_seed(comm.rank + 10 * noise)
        train(module, shared_path, deterministic=True, steps=30, algorithm=mpidl.Downpour(n_push=2))
        trained.append(module.rows.weight.clone())
    assert torch.equal(*trained)


def steps(count):
    """Yield the batches of a run of `steps` steps, as tensors; a batch is a portion."""
    split = mpidl.Digits().open().train
    portions = Portions(split.samples, 64, 64, 5)
    number = 0
    while True:
        for indices in portions.batches(number):
            if not count:
                return
            count -= 1
            batch = split.gather(indices)
            yield torch.from_numpy(batch.inputs.copy()), torch.from_numpy(batch.targets.copy())
        number += 1


def loop(module, groups):
    """Train by the mean of the gradients of each group of batches, weighed by their samples."""
    module.train()
    dtype = next(module.parameters()).dtype
    for group in groups:
        module.zero_grad()
        samples = sum(len(targets) for _, targets in group)
        for inputs, targets in group:
            loss = functional.cross_entropy(module(inputs.to(dtype)), targets)
            (loss * (len(targets) / samples)).backward()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter -= 0.05 * parameter.grad


#: Of each kind one.
BUILT = ["batch_norm", "spectral_norm", "Repeated", "Teacher", "Sparse", "CheckpointedReentrantly", "clustered", "lstm"]
RARE = [
    *("dropout", "channels_last", "Scalar", "Experts", "Assigned", "weighed", "embedding_bag", "encoder", "UNet"),
]


@pytest.mark.parametrize("name", long_but(BUILT, BUILT + RARE))
def test_what_people_build_equals_a_plain_loop_and_trains_on(comm, shared_path, name):
    assert differences(name, str(shared_path), servers=comm.size - 2) == []
