"""One worker that trains a JAX function is a plain JAX loop, bit for bit, and PyTorch's loop but for rounding."""

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import mpidl  # noqa: E402
import torch_modules  # noqa: E402
from jax_functions import loss, loss_with_dropout, mlp, plain  # noqa: E402
from mpidl.config import from_dict  # noqa: E402
from mpidl.jax import JaxModel  # noqa: E402
from mpidl.job.job import Job  # noqa: E402

RUN = {"batch": 37, "steps": 100, "seed": 5}


def trained(model, tmp_path, servers=1):
    """Train a model on the embedded digits, and return its parameters as a pytree."""
    mpidl.train(model, mpidl.Digits(), rule=mpidl.Sgd(0.05), servers=servers, dir=tmp_path, **RUN)
    return model.tree()


def plain_loop(parameters):
    """Train as one does without this package."""
    values = {"run": {"steps": RUN["steps"], "seed": RUN["seed"]}, "model": {"factory": "python:object"}}
    config = from_dict(values | {"data": {"batch": RUN["batch"]}}, data_source=mpidl.Digits())
    job = Job.of(config, mpidl.Digits().open(), JaxModel(parameters, plain))
    gradient = jax.jit(jax.grad(plain))
    for inputs, targets in torch_modules.batches(job):
        gradients = gradient(parameters, (inputs.numpy(), targets.numpy()))
        # In NumPy: compiled by JAX, the multiplication and the subtraction would round once.
        parameters = jax.tree.map(lambda each, by: each - np.float32(0.05) * np.asarray(by), parameters, gradients)
    return parameters


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_one_worker_is_a_plain_loop(tmp_path, servers):
    found, expected = trained(JaxModel(mlp(), plain), tmp_path, servers), plain_loop(mlp())
    assert jax.tree.all(jax.tree.map(np.array_equal, found, expected))
    assert not np.array_equal(found["layers"][1]["bias"], mlp()["layers"][1]["bias"])


def test_runs_with_dropout_repeat_to_the_bit(tmp_path):
    found = [trained(JaxModel(mlp(), loss_with_dropout, has_aux=True, seed=seed), tmp_path) for seed in (3, 3, 4)]
    same = [jax.tree.all(jax.tree.map(np.array_equal, found[0], other)) for other in found[1:]]
    assert same == [True, False]


@pytest.mark.usefixtures("float64")
def test_training_equals_that_of_pytorch(tmp_path):
    module = torch_modules.mlp(dtype=torch.float64)
    layers = [
        {"weight": layer.weight.detach().numpy().T.copy(), "bias": layer.bias.detach().numpy().copy()}
        for layer in module
        if isinstance(layer, torch.nn.Linear)
    ]
    found = trained(JaxModel({"layers": layers}, loss, has_aux=True), tmp_path)["layers"]
    mpidl.train(module, mpidl.Digits(), loss="cross_entropy", rule=mpidl.Sgd(0.05), dir=tmp_path, **RUN)
    for mine, layer in zip(found, [module[1], module[4]], strict=True):
        assert mine["weight"].dtype == np.float64
        np.testing.assert_allclose(mine["weight"].T, layer.weight.detach().numpy(), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(mine["bias"], layer.bias.detach().numpy(), rtol=1e-6, atol=1e-6)


def test_a_loss_of_nan_ends_the_run(tmp_path):
    def broken(parameters, batch):
        return plain(parameters, batch) * np.nan

    with pytest.raises(mpidl.MpidlError, match="the loss is nan") as error:
        trained(JaxModel(mlp(), broken), tmp_path)
    assert "\n" not in str(error.value)
