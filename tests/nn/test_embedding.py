"""Embedding: rows, their gradients, and invalid ids."""

import numpy as np
import pytest

from layer_cases import Alone
from mpidl.config import from_dict
from mpidl.data import ArraySplit, Dataset
from mpidl.data.batch import Batch
from mpidl.errors import UsageError
from mpidl.job.job import Job
from mpidl.nn import Concatenate, Dense, Embedding, Flatten, Network, kernels
from mpidl.nn.layers.embedding import EmbeddingRows
from mpidl.nn.layers.workspace import Workspace
from mpidl.parameters import Range


def test_outputs_are_rows_and_their_gradients_add_up():
    alone = Alone(Embedding(4, 3), (5,), samples=1)
    alone.inputs[0][...] = [[3, 0, 3, 3, 1]]
    weight = alone.parameters["weight"]
    np.testing.assert_array_equal(alone.forward(), weight[[[3, 0, 3, 3, 1]]])
    y = np.arange(15.0).reshape(1, 5, 3)
    inputs, gradient = alone.backward(y)
    np.testing.assert_array_equal(gradient, [y[0, 1], y[0, 4], np.zeros(3), y[0, 0] + y[0, 2] + y[0, 3]])
    np.testing.assert_array_equal(inputs, np.zeros((1, 5)))


def test_a_part_of_the_rows_leaves_other_words_at_zero():
    alone = Alone(EmbeddingRows(vocabulary=9, units=2, rows=Range(3, 5)), (4,), samples=1)
    alone.inputs[0][...] = [[2, 3, 4, 5]]
    weight = alone.parameters["weight"]
    assert weight.shape == (2, 2)
    np.testing.assert_array_equal(alone.forward(), [[[0, 0], weight[0], weight[1], [0, 0]]])
    np.testing.assert_array_equal(alone.backward(np.arange(8.0).reshape(1, 4, 2))[1], [[2, 3], [4, 5]])
    alone.inputs[0][0, 0] = 9
    with pytest.raises(UsageError, match=r"^an id of 9, the embedding has a vocabulary of 9$"):
        alone.forward()


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float32])
def test_ids_of_any_type_reach_their_row(dtype):
    network = Network([Embedding(300, 2), Dense(3)], (1,))
    ids = np.array([[0], [7], [255]], dtype)
    weight = network.layout.views(network.parameters)["0-embedding/weight"]
    gradient = network.layout.views(network.loss_and_gradient(Batch(ids, np.array([0, 1, 2])))[1])
    assert np.flatnonzero(gradient["0-embedding/weight"].any(axis=1)).tolist() == [0, 7, 255]
    assert 0.5 < weight.std() < 2


@pytest.mark.parametrize(
    ("found", "named"), [(11, "11"), (-1, "-1"), (1e9, "1000000000")], ids=["one too high", "negative", "high"]
)
def test_an_id_that_is_no_row_is_one_line(found, named):
    alone = Alone(Embedding(11, 3), (7,))
    alone.inputs[0][2, 5] = found
    with pytest.raises(UsageError) as error:
        alone.forward()
    assert str(error.value) == f"an id of {named}, the embedding has a vocabulary of 11"


def test_a_vocabulary_that_the_dtype_can_not_count_is_one_line():
    work = Workspace(np, kernels.of(np), {}, {}, {"ids": np.empty((1, 1), np.int64)}, True, np.random.default_rng)
    with pytest.raises(UsageError) as error:
        Embedding(2**24 + 1, 1).forward(work, np.zeros((1, 1), np.float32), np.empty((1, 1, 1), np.float32))
    assert str(error.value) == "vocabulary: 16777217, ids of float32 are exact up to 16777216"


@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
def test_a_job_gives_an_embedding_the_ids_of_its_data(dtype):
    """Bytes too, which other layers get scaled; and an id that float32 can't hold, where the dtype can."""
    ids = np.array([[0, 1], [254, 255], [3, 4]] * 4, dtype)
    if dtype == np.int64:
        ids[0] = 2**24 + 1
    network = Network([Embedding(int(ids.max()) + 1, 1), Dense(3)], (2,))
    split = ArraySplit(ids, np.arange(12) % 3)
    config = from_dict({"data": {"source": "digits"}, "model": {"factory": "python:object"}})
    batch = Job.of(config, Dataset("test", (2,), 3, split, split), network).dataset.train.gather(np.arange(12))
    assert np.array_equal(batch.inputs, ids)
    network.parameters = np.zeros(network.layout.size, np.float32)
    network.layout.views(network.parameters)["1-dense/weight"][:] = 1
    gradient = network.layout.views(network.loss_and_gradient(batch._replace(targets=np.zeros(12, int)))[1])
    weight = network.layout.views(network.parameters)["0-embedding/weight"]
    weight[ids[0, 0]] = 1
    assert gradient["0-embedding/weight"].shape == weight.shape
    assert network.predict(batch.inputs[:3])[:, 0].tolist() == [2.0 if dtype == np.int64 else 1.0, 0.0, 0.0]


def test_ids_are_read_once_for_their_checksum_and_the_training():
    reads = []
    split = ArraySplit(lambda: reads.append(1) or np.zeros((12, 2), np.uint8), np.arange(12) % 3)
    config = from_dict({"data": {"source": "digits"}, "model": {"factory": "python:object"}})
    network = Network([Embedding(5, 1), Dense(3)], (2,))
    job = Job.of(config, Dataset("test", (2,), 3, split, ArraySplit(np.zeros((1, 2)), [0])), network)
    job.given.train.checksum()
    job.dataset.train.load()
    assert len(reads) == 1


def test_other_layers_beside_an_embedding_take_floats():
    layers = [
        Embedding(300, 2, name="ids"),
        Flatten(name="words", inputs=("ids",)),
        Dense(2, name="sizes", inputs=("inputs",)),
        Concatenate(inputs=("words", "sizes")),
        Dense(3),
    ]
    network = Network(layers, (2,))
    assert network.takes_integers
    ids, labels = np.array([[0, 255], [17, 3]], np.uint8), np.array([0, 2])
    loss, gradient = network.loss_and_gradient(Batch(ids, labels))
    gradient = gradient.copy()
    again, same = network.loss_and_gradient(Batch(ids.astype(np.float32), labels))
    assert loss == again
    assert np.array_equal(gradient, same)
