"""A function of JAX takes rows of tables, and trains them."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from mpidl.data.batch import Batch
from mpidl.errors import UsageError
from mpidl.jax import JaxModel, TableSpec
from mpidl.nn.adaptation import ModelError
from sparse_rows import RowsInArrays

TABLES = [TableSpec("words", 3, 7), TableSpec("users", 2)]
WEIGHTS = np.linspace(-1, 1, 21, dtype="float32").reshape(7, 3), np.linspace(0, 1, 8, dtype="float32").reshape(4, 2)
BATCH = Batch(np.array([[1, 4, 1, 0], [6, 4, 4, 3], [1, 1, 1, 1]]), np.array([0, 1, 1]))


def lookups(inputs):
    return {"words": inputs[:, :3], "users": inputs[:, 3]}


def loss(parameters, batch, rows):
    _, targets = batch
    values = jnp.concatenate([rows["words"].sum(1), rows["users"]], 1) @ parameters["weight"]
    return -jnp.take_along_axis(jax.nn.log_softmax(values), targets[:, None], 1).mean(), values


def parameters():
    return {"weight": np.linspace(-1, 1, 10, dtype="float32").reshape(5, 2)}


def model(**options):
    options = {"tables": TABLES, "lookups": lookups} | options
    made = JaxModel(parameters(), loss, has_aux=True, takes_integers=True, **options)
    made.rows = RowsInArrays(*WEIGHTS)
    return made


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_gradients_are_those_of_whole_matrices(micro_batches):
    def whole(tree, words, users):
        rows = {"words": words[BATCH.inputs[:, :3]], "users": users[BATCH.inputs[:, 3]]}
        return loss(tree, (BATCH.inputs, BATCH.targets), rows)[0]

    expected, gradients = jax.value_and_grad(whole, argnums=(0, 1, 2))(parameters(), *map(jnp.asarray, WEIGHTS))
    made = model(micro_batches=micro_batches)
    found, gradient = made.loss_and_gradient(BATCH)
    assert found == pytest.approx(float(expected))
    np.testing.assert_allclose(gradient, gradients[0]["weight"].ravel(), rtol=1e-5, atol=1e-7)
    for table in (0, 1):
        np.testing.assert_allclose(made.rows.gradient(table), gradients[1 + table], rtol=1e-5, atol=1e-7)
    before = len(made.rows.lookups)
    assert made.evaluate(BATCH).loss == pytest.approx(3 * found)
    assert all(each.gradient is None for *_, each in made.rows.lookups[before:])


def test_lookups_are_known_ahead():
    assert [(table, ids.tolist()) for table, ids in model().wanted(BATCH)] == [
        (0, BATCH.inputs[:, :3].ravel().tolist()),
        (1, BATCH.inputs[:, 3].tolist()),
    ]
    assert model(micro_batches=2).wanted(BATCH) is None
    assert JaxModel(parameters(), lambda tree, batch: 0.0).wanted(BATCH) is None


@pytest.mark.parametrize(
    ("options", "error", "line"),
    [
        ({"lookups": None}, UsageError, "model: loss: tables, but not lookups, expected both"),
        ({"lookups": lambda inputs: {"word": inputs}}, ModelError, "lookups: 'word' is no table, did you mean 'words'"),
        ({"lookups": lambda inputs: {"words": inputs + 1}}, UsageError, "table words: an id of 7, expected 0 to 6"),
        ({"lookups": lambda inputs: inputs.nonsense}, ModelError, "model: loss: lookups raised AttributeError"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(options, error, line):
    with pytest.raises(error, match=line) as found:
        model(**options).loss_and_gradient(BATCH)
    assert "\n" not in str(found.value)
