"""A loop of the user's own over a pytree of JAX."""

import jax
import numpy as np
import pytest

import mpidl
from jax_functions import mlp, plain
from mpidl.jax import JaxModel
from mpidl.loops.switch import LoopError

value_and_grad = jax.jit(jax.value_and_grad(plain))


def by_trees(replica):
    for batch in replica.batches():
        loss, gradients = value_and_grad(replica.parameters, batch)
        replica.step(loss, gradient=gradients)


@pytest.fixture
def options(tmp_path):
    return {"dir": str(tmp_path), "batch": 37, "epochs": 2, "rule": mpidl.Adam(0.01)}


@pytest.mark.parametrize("algorithm", ["downpour", "sync"])
def test_a_loop_trains_as_train_does(options, algorithm):
    model, expected = JaxModel(mlp(), plain), JaxModel(mlp(), plain)
    summary = mpidl.loop(by_trees, model, mpidl.Digits(), algorithm=algorithm, **options)
    trained = mpidl.train(expected, mpidl.Digits(), algorithm=algorithm, **options)
    assert np.array_equal(model.parameters, expected.parameters)
    assert summary["test_loss"] == trained["test_loss"]


@pytest.mark.parametrize(
    "wrong", [{"layers": []}, [1.0], {"layers": [{"weight": np.zeros(3), "bias": np.zeros(3)}] * 2}]
)
def test_a_gradient_of_another_structure_is_one_line(options, wrong):
    def other(replica):
        for _ in replica.batches():
            replica.step(gradient=wrong)

    with pytest.raises(LoopError, match=r"replica\.step: gradient: (a pytree unlike|leaves of the shapes)"):
        mpidl.loop(other, JaxModel(mlp(), plain), mpidl.Digits(), **options)
