"""`l2` and `clip` of models of all kinds, against descent by hand on the whole of the data."""

import numpy as np
import pytest

import mpidl
from mpidl.nn.losses import MeanSquaredError
from mpidl.parameters import Layout

SAMPLES, INPUTS, STEPS, RATE, L2, CLIP = 12, 3, 5, 0.5, 0.5, 0.4
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(SAMPLES, INPUTS)).astype(np.float32)
Y = RANDOM.normal(size=(SAMPLES, 1)).astype(np.float32)
WEIGHT, BIAS = np.array([0.5, -1.0, 2.0]), np.array([0.25])


class Least:
    """Least squares of two tensors; `statistic` more elements aren't trained."""

    def __init__(self, statistic=0):
        self.layout = Layout([("weight", (INPUTS, 1)), ("bias", (1,)), ("statistic", (statistic, 1))])
        self.statistics = [self.layout["statistic"].range]
        self.parameters = np.concatenate([WEIGHT, BIAS, np.full(statistic, 3.0)])

    def loss_and_gradient(self, batch):
        error = batch.inputs @ self.parameters[:3] + self.parameters[3] - batch.targets[:, 0]
        gradient = np.zeros_like(self.parameters)
        gradient[:4] = 2 * np.append(batch.inputs.T @ error, error.sum()) / len(error)
        gradient[4:] = 100 * self.parameters[4:]
        return np.mean(error**2), gradient

    def trained(self):
        return self.parameters[:4]


class Flat(Least):
    """The same in one tensor, all of it weights."""

    def __init__(self):
        super().__init__()
        del self.layout, self.statistics


def network():
    model = mpidl.Network([mpidl.Dense(1)], (INPUTS,), loss=MeanSquaredError(), dtype="float64")
    model.trained = lambda: model.parameters
    return model


def torch_module():
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(INPUTS, 1).double()
    with torch.no_grad():
        module.weight[:], module.bias[:] = torch.tensor(WEIGHT), torch.tensor(BIAS)
    module.trained = lambda: np.append(module.weight.detach().numpy(), module.bias.detach().numpy())
    return module


def jax_model():
    pytest.importorskip("jax")
    from jax import numpy as jnp

    from mpidl.jax import JaxModel

    def loss(parameters, batch):
        inputs, targets = batch
        return jnp.mean((inputs @ parameters["weight"] + parameters["bias"] - targets) ** 2)

    trees = {"weight": jnp.asarray(WEIGHT, jnp.float32)[:, None], "bias": jnp.asarray(BIAS, jnp.float32)}
    model = JaxModel(trees, loss)
    model.trained = lambda: np.append(model.tree()["weight"], model.tree()["bias"]).astype(float)
    return model


def by_hand(values, l2=0.0, clip=None, penalised=3):
    """Return the parameters, the last loss, and the largest norm of a gradient."""
    largest = 0.0
    inputs = np.c_[X, np.ones(SAMPLES)]
    for _ in range(STEPS):
        error = inputs @ values - Y[:, 0]
        loss = np.mean(error**2) + l2 / 2 * np.sum(values[:penalised] ** 2)
        gradient = 2 * inputs.T @ error / SAMPLES
        gradient[:penalised] += l2 * values[:penalised]
        norm = np.linalg.norm(gradient)
        largest = max(largest, norm)
        values -= RATE * gradient * (1 if clip is None or norm <= clip else clip / norm)
    return values, loss, largest


def trained(model, path, **given):
    loss = {} if hasattr(model, "loss_and_gradient") else {"loss": "mse_loss"}
    summary = mpidl.train(
        model, mpidl.Arrays((X, Y), (X, Y)), dir=path, rule=mpidl.Sgd(RATE), steps=STEPS, batch=SAMPLES, **loss, **given
    )
    return model.trained(), summary["train_loss"]


@pytest.mark.parametrize("given", [{"l2": L2}, {"clip": CLIP}, {"l2": L2, "clip": CLIP}], ids=str)
@pytest.mark.parametrize("make", [Least, lambda: Least(5), network, torch_module, jax_model])
def test_a_model_of_ones_own(make, given, tmp_path):
    model = make()
    values, loss, largest = by_hand(model.trained().copy(), **given)
    assert largest > CLIP
    found, found_loss = trained(model, tmp_path, **given)
    tolerance = 1e-6 if make is not jax_model else 1e-4
    np.testing.assert_allclose(found, values, rtol=tolerance)
    assert found_loss == pytest.approx(loss, rel=tolerance)


def test_all_of_a_model_without_matrices_is_weights(tmp_path):
    values, loss, _ = by_hand(np.append(WEIGHT, BIAS), L2, penalised=4)
    found, found_loss = trained(Flat(), tmp_path, l2=L2)
    np.testing.assert_allclose(found, values, rtol=1e-6)
    assert found_loss == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize("given", [{"l2": L2}, {"clip": CLIP}], ids=str)
def test_frozen_parameters_have_no_part_in_it(given, tmp_path):
    """The norm is that of the weights alone, and frozen weights have no penalty."""
    frozen = "bias" if "clip" in given else "weight"
    values = np.append(WEIGHT, BIAS)
    inputs = np.c_[X, np.ones(SAMPLES)]
    for _ in range(STEPS):
        gradient = 2 * inputs.T @ (inputs @ values - Y[:, 0]) / SAMPLES
        gradient[slice(3, 4) if frozen == "bias" else slice(3)] = 0
        values -= RATE * gradient * (min(1, CLIP / np.linalg.norm(gradient)) if "clip" in given else 1)
    found, _ = trained(Least(), tmp_path, groups=[{"match": frozen, "frozen": True}], **given)
    np.testing.assert_allclose(found, values, rtol=1e-6)


def test_a_type_that_the_model_does_not_have_is_one_line(tmp_path):
    with pytest.raises(
        mpidl.UsageError, match=r"^model.dtype: 'float32', but the parameters of the model are float64$"
    ):
        trained(Least(), tmp_path, dtype="float32")
    trained(Least(), tmp_path, dtype="float64")
