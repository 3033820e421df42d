"""Embeddings: rows, their gradients, invalid ids; and those with tables, beside dense ones."""

import numpy as np
import pytest

from layer_cases import Alone
from mpidl.config import from_dict
from mpidl.data import ArraySplit, Dataset
from mpidl.data.batch import Batch
from mpidl.errors import UsageError
from mpidl.job.job import Job
from mpidl.nn import (
    Columns,
    Concatenate,
    Dense,
    Embedding,
    Flatten,
    MeanSquaredError,
    Network,
    SparseEmbedding,
    kernels,
)
from mpidl.nn.layers.embedding import EmbeddingRows
from mpidl.nn.layers.workspace import Workspace
from mpidl.nn.network import from_config, layer_from_section
from mpidl.parameters import Range
from mpidl.tables.lookups import TableSpec
from sparse_rows import RowsInArrays


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


RANDOM = np.random.default_rng(8)


def network(*layers, shape=(5,), **options):
    return Network(layers, shape, dtype="float64", loss=MeanSquaredError(), **options)


def features(embedding):
    """Return layers for ids in columns 2 to 4, and for the log of the numbers before them."""
    return [
        Columns(2, 3, name="ids", inputs=("inputs",)),
        embedding,
        Flatten(name="words", inputs=("rows",)),
        Columns(0, 2, transform="log1p", name="numbers", inputs=("inputs",)),
        Concatenate(inputs=("words", "numbers")),
        Dense(4, "tanh"),
        Dense(2),
    ]


def test_a_sparse_network_is_the_dense_one():
    """Bit for bit: losses, gradients of the layers, and those of the rows."""
    dense = network(*features(Embedding(11, 4, name="rows", inputs=("ids",))))
    sparse = network(*features(SparseEmbedding(4, 11, name="rows", inputs=("ids",))))
    size = 44
    assert (sparse.layout.size, dense.layout.size) == (dense.layout.size - size, sparse.layout.size + size)
    assert sparse.tables == [TableSpec("rows", 4, 11)]
    assert sparse.takes_integers
    weight = dense.layout.views(dense.parameters)["rows/weight"]
    sparse.parameters = dense.parameters[size:].copy()
    inputs = RANDOM.integers(0, 11, (9, 5))
    batch = Batch(inputs, RANDOM.normal(size=(9, 2)))
    sparse.rows = rows = RowsInArrays(weight)
    (wanted,) = sparse.wanted(batch)
    assert (wanted.table, wanted.ids.dtype, wanted.ids.tolist()) == (0, np.int64, inputs[:, 2:].reshape(-1).tolist())
    assert not rows.lookups
    loss, gradient = sparse.loss_and_gradient(batch)
    expected_loss, expected = dense.loss_and_gradient(batch)
    assert loss == expected_loss
    assert np.array_equal(gradient, expected[size:])
    assert np.array_equal(rows.gradient(0), dense.layout.views(expected)["rows/weight"])
    assert len(rows.lookups) == 1
    assert sparse.evaluate(batch).loss == dense.evaluate(batch).loss
    assert rows.lookups[-1][1].gradient is None


def test_layers_of_a_table_share_its_rows():
    layers = [
        Columns(0, 2, name="first"),
        SparseEmbedding(3, "any", name="a", table="words"),
        Columns(2, 3, name="rest", inputs=("inputs",)),
        SparseEmbedding(3, table="words", name="b"),
        SparseEmbedding(2, name="own", inputs=("inputs",), initialiser="uniform", scale=0.25),
        Flatten(name="x", inputs=("a",)),
        Flatten(name="y", inputs=("b",)),
        Flatten(name="z", inputs=("own",)),
        Concatenate(inputs=("x", "y", "z")),
        Dense(1),
    ]
    model = network(*layers)
    assert model.tables == [TableSpec("words", 3), TableSpec("own", 2, normal=False, scale=0.25)]
    inputs = np.array([[0, 1, 2, 3, 0]])
    assert [(each.table, each.ids.tolist()) for each in model.wanted(Batch(inputs, None))] == [
        (0, [0, 1]),
        (0, [2, 3, 0]),
        (1, [0, 1, 2, 3, 0]),
    ]
    model.rows = rows = RowsInArrays(np.arange(12.0).reshape(4, 3), np.zeros((4, 2)))
    model.layout.views(model.parameters)["9-dense/weight"][:, 0] = np.arange(25)
    model.loss_and_gradient(Batch(inputs, np.full((1, 1), 1e3)))
    found = rows.gradient(0)
    scale = found[1, 0] / 3
    # Id 0 is in the first and in the last of the five places of the table.
    np.testing.assert_allclose(found / scale, [[12, 14, 16], [3, 4, 5], [6, 7, 8], [9, 10, 11]])


@pytest.mark.parametrize("rows", [1000, 1e3, np.int64(1000), "any"])
def test_rows_of_a_table(rows):
    section = {"type": "embedding", "sparse": True, "dimension": 16, "rows": rows}
    model = from_config([section, {"type": "dense", "units": 3}], "softmax_cross_entropy", (2,), 0)
    assert model.tables == [TableSpec("0-embedding", 16, None if rows == "any" else 1000)]
    if rows == "any":
        extremes = np.array([[-(2**63), 2**63 - 1]])
        assert model.wanted(Batch(extremes, None))[0].ids.tolist() == extremes[0].tolist()
    else:
        with pytest.raises(UsageError, match=r"^table 0-embedding: an id of 1000, expected 0 to 999$"):
            model.wanted(Batch(np.array([[0, 1000]]), None))


SPARSE = {"type": "embedding", "sparse": True, "dimension": 2}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (SPARSE | {"vocabulary": 9}, "m.vocabulary: unknown key; it belongs to embedding without sparse = true"),
        (SPARSE | {"sparse": False}, "m.dimension: unknown key; it belongs to embedding with sparse = true"),
        ({"type": "embedding", "rows": 9}, "m.rows: unknown key; it belongs to embedding with sparse = true"),
        (SPARSE | {"sparse": 1}, "m.sparse: expected bool, found 1"),
        (SPARSE | {"rows": 1.5}, "m.rows: 1.5, expected a whole number from 1 to 2**63 - 1"),
        (SPARSE | {"rows": 1e19}, "m.rows: 1e+19, expected a whole number from 1 to 2**63 - 1"),
        (SPARSE | {"rows": 0}, "m.rows: expected int >= 1 or float or 'any', found 0"),
        (SPARSE | {"rows": "all"}, "m.rows: expected int >= 1 or float or 'any', found 'all'"),
        ({"type": "dense", "sparse": True, "units": 1}, "m.sparse: unknown key"),
    ],
)
def test_sections_that_are_none_of_a_table(section, message):
    with pytest.raises(UsageError) as error:
        layer_from_section(section, "m")
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (
            [Dense(3), SparseEmbedding(2), Dense(1)],
            "model.layer[1]: a sparse embedding of outputs of '0-dense', expected the network's inputs, or some of "
            "them by a layer of columns",
        ),
        (
            [Columns(0, 2, transform="log1p"), SparseEmbedding(2), Dense(1)],
            "model.layer[1]: a sparse embedding of outputs of '0-columns', expected the network's inputs, or some of "
            "them by a layer of columns",
        ),
        (
            [
                SparseEmbedding(2, table="a", name="x"),
                SparseEmbedding(3, table="a", name="y", inputs=("inputs",)),
                Concatenate(inputs=("x", "y")),
                Dense(1),
            ],
            "model.layer[1].table: 'a' is that of model.layer[0], expected the same dimension, rows, initialiser and "
            "scale",
        ),
        (
            [SparseEmbedding(2, name="x"), SparseEmbedding(2, name="x", inputs=("inputs",)), Dense(1)],
            "model.layer[1].name: 'x' is the name of layer 0, expected a unique one",
        ),
        (
            [SparseEmbedding(1), Flatten()],
            "model.layer: all parameters are in tables, expected a layer of others too, such as dense",
        ),
        ([Columns(3, 3), Dense(1)], "model.layer[0]: columns 3 to 5, the inputs have shape (5,)"),
    ],
)
def test_networks_that_are_none(layers, message):
    with pytest.raises(UsageError) as error:
        network(*layers)
    assert str(error.value) == message


def test_rows_that_are_not_set_are_one_line():
    model = network(SparseEmbedding(2), Dense(2))
    with pytest.raises(UsageError, match=r"^model.rows: not set; a model with tables takes their rows from it"):
        model.predict(np.zeros((3, 5), int))


@pytest.mark.parametrize("dtype", [np.float32, bool])
def test_ids_that_are_no_whole_numbers_are_one_line(dtype):
    model = network(SparseEmbedding(2), Dense(2))
    model.rows = RowsInArrays(np.zeros((9, 2)))
    message = f"^table 0-embedding: ids of type {np.dtype(dtype)}, expected integers$"
    with pytest.raises(UsageError, match=message):
        model.predict(np.zeros((3, 5), dtype))
