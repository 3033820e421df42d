"""Bags of rows in networks of layers: outputs and gradients of `torch.nn.EmbeddingBag` in float64."""

import numpy as np
import pytest
import torch

from mpidl.data.batch import Batch
from mpidl.data.ragged import Ragged
from mpidl.errors import UsageError
from mpidl.nn import Dense, Embedding, MeanSquaredError, Network, SparseEmbedding
from sparse_rows import RowsInArrays

ROWS, DIMENSION = 9, 4
#: Rows with equal values: the gradient of a maximum is that of the first of the largest.
WEIGHT = np.random.default_rng(2).integers(-3, 4, (ROWS, DIMENSION)).astype(float)
BAGS = [[3, 1, 3], [], [0], [8, 7, 6, 5, 4, 3, 2, 1, 0], [0, 0], [], [5, 0, 2]]
TARGETS = np.random.default_rng(3).normal(size=(len(BAGS), 2))


def trained(layer, inputs, shape):
    """Return the outputs of a layer of rows before a dense layer, and the gradients of both."""
    network = Network([layer, Dense(2)], shape, dtype="float64", loss=MeanSquaredError(), seed=4)
    network.rows = rows = RowsInArrays(WEIGHT)
    batch = Batch(inputs, TARGETS[: len(inputs)])
    (wanted,) = network.wanted(batch)
    gradient = network.loss_and_gradient(batch)[1].copy()
    assert np.array_equal(rows.lookups[0][1].ids[rows.lookups[0][1].places], wanted.ids)
    return network.predict(inputs), gradient, rows.gradient(0), network


def expected(network, inputs, offsets, mode, padding):
    """Return the same of PyTorch's."""
    bag = torch.nn.EmbeddingBag.from_pretrained(
        torch.tensor(WEIGHT), freeze=False, mode=mode, padding_idx=padding
    )  # fmt: skip
    weight, bias = (
        torch.tensor(each, requires_grad=True) for each in network.layout.views(network.parameters).values()
    )
    outputs = bag(torch.tensor(inputs), None if offsets is None else torch.tensor(offsets)) @ weight + bias
    torch.nn.functional.mse_loss(outputs, torch.tensor(TARGETS[: len(outputs)])).backward()
    gradient = np.concatenate([each.grad.numpy().reshape(-1) for each in (weight, bias)])
    return outputs.detach().numpy(), gradient, bag.weight.grad.numpy()


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 0, 3])
def test_bags_are_those_of_pytorch(mode, padding):
    bags = Ragged.of(BAGS)
    *found, network = trained(SparseEmbedding(DIMENSION, ROWS, mode, padding), bags, ())
    for one, other in zip(found, expected(network, bags.values, bags.offsets[:-1], mode, padding), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 1])
def test_bags_of_one_size_are_those_of_pytorch(mode, padding):
    inputs = np.random.default_rng(5).integers(0, 3, (7, 4))
    inputs[2] = 1
    *found, network = trained(SparseEmbedding(DIMENSION, ROWS, mode, padding), inputs, (4,))
    for one, other in zip(found, expected(network, inputs, None, mode, padding), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def test_bags_along_the_last_axis_of_several():
    inputs = np.random.default_rng(5).integers(0, ROWS, (5, 3, 2))
    outputs, _, rows, _ = trained(SparseEmbedding(DIMENSION, ROWS, "sum"), inputs, (3, 2))
    assert outputs.shape == (5, 2)
    network = Network([SparseEmbedding(DIMENSION, mode="sum"), Dense(1)], (3, 2), dtype="float64")
    assert network.graph.shapes[1] == (3, DIMENSION)
    assert rows.any(axis=1).tolist() == np.isin(np.arange(ROWS), inputs).tolist()


def test_a_padding_without_bags_is_a_row_of_zeros():
    inputs = np.array([[1, -1], [2, 1]])
    outputs, _, rows, network = trained(SparseEmbedding(DIMENSION, ROWS, padding=-1), inputs, (2,))
    weight, bias = network.layout.views(network.parameters).values()
    first = np.concatenate([WEIGHT[1], np.zeros(DIMENSION)])
    np.testing.assert_allclose(outputs[0], first @ weight + bias, rtol=1e-12, atol=1e-12)
    assert np.flatnonzero(rows.any(axis=1)).tolist() == [1, 2]


def test_single_ids_are_inputs_without_an_axis():
    outputs, _, _, network = trained(SparseEmbedding(DIMENSION, ROWS), np.array([4, 4, 1]), ())
    weight, bias = network.layout.views(network.parameters).values()
    np.testing.assert_allclose(outputs, WEIGHT[[4, 4, 1]] @ weight + bias, rtol=1e-12)


def test_a_batch_of_empty_bags_has_zeros():
    outputs, _, rows, network = trained(SparseEmbedding(DIMENSION, ROWS, "mean"), Ragged.of([[], []]), ())
    bias = network.layout.views(network.parameters)["1-dense/bias"]
    assert np.array_equal(outputs, [bias, bias])
    assert not rows.any()


@pytest.mark.parametrize("layers", [[SparseEmbedding(2), Dense(1)], [Embedding(9, 2), Dense(1)], [Dense(1)]])
def test_bags_for_a_network_without_a_mode_are_one_line(layers):
    network = Network(layers, ())
    network.rows = RowsInArrays(WEIGHT)
    with pytest.raises(UsageError, match=r"^a batch of bags of ids, which only sparse embeddings with a mode take$"):
        network.predict(Ragged.of(BAGS))
