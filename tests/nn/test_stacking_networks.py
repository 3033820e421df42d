"""Stacking networks: their layers, and what is summed to train a module, against NumPy."""

import numpy as np
import pytest

from mpidl.data import Batch
from mpidl.nn.network import from_config
from mpidl.nn.stacking import StackedModule, gradient, layers, normal_equations, solve

MODULES, HIDDEN, OUTPUTS, RIDGE = 3, 7, 4, 0.3


def made(shape=(3, 2), hidden=HIDDEN, seed=1):
    """Return a network in float64 with random weights everywhere, and a batch with targets of floats."""
    random = np.random.default_rng(seed)
    network = from_config(layers(MODULES, hidden, OUTPUTS), "mean_squared_error", shape, 0, "float64")
    network.parameters[:] = random.normal(size=network.layout.size)
    return network, Batch(random.normal(size=(50, *shape)), random.normal(size=(50, OUTPUTS)))


def sigmoid(values):
    return 1 / (1 + np.exp(-values))


def values(network, batch):
    """Return X, H and Y of each module, by the paper's equations."""
    tensors = network.layout.views(network.parameters)
    inputs, found = batch.inputs.reshape(len(batch.inputs), -1), []
    for number in range(1, MODULES + 1):
        hidden = sigmoid(inputs @ tensors[f"hidden-{number}/weight"] + tensors[f"hidden-{number}/bias"])
        outputs = hidden @ tensors[f"outputs-{number}/weight"]
        found.append((inputs, hidden, outputs))
        inputs = np.concatenate([inputs, outputs], axis=1)
    return found


def test_each_module_takes_the_data_and_the_outputs_of_those_below():
    network, batch = made()
    inputs, _, outputs = values(network, batch)[-1]
    assert inputs.shape[1] == 3 * 2 + (MODULES - 1) * OUTPUTS
    np.testing.assert_allclose(network.predict(batch.inputs), outputs, rtol=1e-12)


@pytest.mark.parametrize("number", range(MODULES))
@pytest.mark.parametrize("hidden", [1, 7, 60])
def test_upper_weights_are_the_ridge_regression_of_the_targets(number, hidden):
    network, batch = made(hidden=hidden)
    module, total = StackedModule.of(network.layout, number), 0.0
    assert (module.parts > 1) is (hidden == 60)
    sums = np.zeros((hidden, hidden + OUTPUTS))
    for part in range(module.parts):
        rows = sums[module.rows_of(part)]
        # In two batches of unequal size, each times its weight.
        for samples in (slice(0, 13), slice(13, 50)):
            own = Batch(batch.inputs[samples], batch.targets[samples])
            loss, found = normal_equations(network, own, number, part)
            rows += own.total * found[: rows.size].reshape(rows.shape)
            assert not found[rows.size :].any()
            total += own.total * loss
    _, h, outputs = values(network, batch)[number]
    assert total / module.parts == pytest.approx(np.sum((batch.targets - outputs) ** 2) / OUTPUTS)
    upper = solve(sums, hidden, RIDGE)
    above = np.concatenate([h, np.sqrt(RIDGE) * np.eye(hidden)])
    beside = np.concatenate([batch.targets, np.zeros((hidden, OUTPUTS))])
    np.testing.assert_allclose(upper, np.linalg.lstsq(above, beside, rcond=None)[0], rtol=0, atol=1e-10)
    np.testing.assert_allclose(h.T @ (batch.targets - h @ upper), RIDGE * upper, rtol=0, atol=1e-10)


@pytest.mark.parametrize("number", range(MODULES))
def test_the_gradient_is_that_of_the_objective_where_the_upper_weights_follow_the_lower(number):
    network, batch = made()
    module = StackedModule.of(network.layout, number)

    def fit():
        """Store the upper weights, and return the objective: squared errors, and what the ridge adds."""
        sums = normal_equations(network, batch, number, 0)[1][: HIDDEN * (HIDDEN + OUTPUTS)] * batch.total
        upper = solve(sums.reshape(HIDDEN, -1), HIDDEN, RIDGE)
        network.parameters[slice(*module.upper)] = upper.reshape(-1)
        error = batch.targets - values(network, batch)[number][2]
        return (np.sum(error**2) + RIDGE * np.sum(upper**2)) / error.size

    fit()
    loss, found = gradient(network, batch, number)
    found, own = found.copy(), [*range(*module.weight), *range(*module.bias)]
    assert loss == pytest.approx(np.mean((batch.targets - values(network, batch)[number][2]) ** 2))
    assert not np.delete(found, own).any()
    for place in own[:: max(1, len(own) // 20)]:
        at, step = network.parameters[place], 1e-6
        sides = []
        for network.parameters[place] in (at + step, at - step):
            sides.append(fit())
        network.parameters[place] = at
        assert found[place] == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=1e-5, abs=1e-9)


def test_labels_are_targets_of_one():
    network, batch = made()
    labels = np.arange(50) % OUTPUTS
    for function in (lambda of: normal_equations(network, of, 1, 0), lambda of: gradient(network, of, 1)):
        (loss, found), (expected, vector) = (
            (number, vector.copy())
            for number, vector in map(
                function, (batch._replace(targets=labels), batch._replace(targets=np.eye(OUTPUTS)[labels]))
            )
        )
        assert loss == expected
        np.testing.assert_array_equal(found, vector)
