"""JAX functions on the ranks of the test's world."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import mpidl  # noqa: E402
from jax_functions import loss_with_dropout, mlp  # noqa: E402
from mpidl.jax import JaxModel  # noqa: E402

pytestmark = pytest.mark.mpi(min_size=4)


def test_every_rank_has_the_same_parameters_in_every_deterministic_run(comm, shared_path):
    model = JaxModel(mlp(), loss_with_dropout, has_aux=True, seed=3)
    initial, trained = model.parameters.copy(), []
    for _ in range(2):
        model.parameters[:] = initial
        summary = mpidl.train(
            model, mpidl.Digits(), rule=mpidl.Adagrad(0.05), batch=36, steps=36, seed=5, deterministic=True,
            servers=comm.size - 3, dir=shared_path,
        )  # fmt: skip
        trained.append(model.parameters.copy())
    assert summary["test_accuracy"] > 0.8
    assert all(np.array_equal(trained[0], other) for each in trained for other in comm.allgather(each))
