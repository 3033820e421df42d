"""Bags of ids arrive in a module as `torch.nn.EmbeddingBag` takes them."""

import numpy as np
import pytest
import torch

import mpidl
from mpidl.data import Batch, Ragged
from mpidl.torch import TorchModel

BAGS = [[5, 6], [], [7, 0, 7], [], [8]]
LABELS = np.array([0, 1, 1, 0, 2])


class Module(torch.nn.Module):
    """Sums of bags, and, if there are numbers, a layer of these."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.bags = torch.nn.EmbeddingBag(9, 3, mode="sum")
        self.layer = torch.nn.Linear(2, 3)

    def forward(self, input, offsets):
        return self.bags(input, offsets)


class Both(Module):
    def forward(self, numbers, bags):
        return self.layer(numbers) + self.bags(*bags)


def expected(module, numbers=None, bags=BAGS, labels=LABELS):
    """Return the loss and the gradient of the bags' weight, by a loop over the bags."""
    rows = module.bags.weight
    outputs = torch.stack([rows[torch.tensor(bag, dtype=torch.int64)].sum(0) for bag in bags])
    if numbers is not None:
        outputs = outputs + module.layer(torch.tensor(numbers))
    loss = torch.nn.functional.cross_entropy(outputs, torch.tensor(labels))
    return loss.item(), torch.autograd.grad(loss, rows)[0].numpy()


@pytest.mark.parametrize("micro_batches", [1, 2, 3])
@pytest.mark.parametrize("nested", [False, True])
def test_a_gradient_is_that_of_a_loop_over_bags(nested, micro_batches):
    numbers = np.arange(10, dtype=np.float32).reshape(5, 2) / 10
    module, bags = (Both() if nested else Module()), Ragged.of(BAGS)
    loss, gradient = expected(module, numbers if nested else None)
    model = TorchModel(module, "cross_entropy", micro_batches=micro_batches)
    batch = Batch((numbers, bags), LABELS, weight=5.0) if nested else Batch(bags, LABELS)
    found, vector = model.loss_and_gradient(batch)
    assert found == pytest.approx(loss, rel=1e-6)
    np.testing.assert_allclose(model.layout.views(vector)["bags.weight"], gradient, rtol=1e-5, atol=1e-7)
    assert model.evaluate(batch).loss == pytest.approx(5 * loss, rel=1e-6)


def test_a_batch_without_an_id():
    data = mpidl.Arrays((Ragged.of(BAGS), LABELS), (Ragged.of(BAGS), LABELS)).open()
    module = Module()
    loss, _ = expected(module, bags=[[], []], labels=LABELS[[1, 3]])
    model = TorchModel(module, "cross_entropy")
    found, vector = model.loss_and_gradient(data.train.as_integers().gather(np.array([1, 3])))
    assert found == pytest.approx(loss)
    assert not vector.any()
