"""Stacking networks (Deng, Yu, Platt 2012): their layers, and what is summed over samples to train a module.

Module m, from 0, has the inputs X = [x; y_0; ...; y_(m-1)], the hidden units H = sigmoid(W^T X + b), and the outputs
y_m = U^T H, which fit the targets T in least squares. Matrices have a row for each sample here, not a column.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpidl.data.batch import Batch
from mpidl.nn.losses import are_classes
from mpidl.nn.network import Network
from mpidl.parameters import Layout
from mpidl.parameters.ranges import Range

#: Layers of a module.
LAYERS = 3


def layers(modules: int, hidden: int, outputs: int) -> list[dict[str, Any]]:
    """Return the ``[[model.layer]]`` sections of a stacking network."""
    found: list[dict[str, Any]] = []
    for number in range(1, modules + 1):
        inputs: dict[str, Any] = {"type": "flatten", "name": f"inputs-{number}"}
        if number > 1:
            below = [f"inputs-{number - 1}", f"outputs-{number - 1}"]
            inputs |= {"type": "concatenate", "inputs": below}
        found += [
            inputs,
            {"type": "dense", "name": f"hidden-{number}", "units": hidden, "activation": "sigmoid"},
            {
                "type": "dense", "name": f"outputs-{number}", "units": outputs, "bias": False, "initialiser": "zeros",
            },
        ]  # fmt: skip
    return found


class StackedModule(NamedTuple):
    """The tensors of a module in the flat vector of parameters.

    Attributes
    ----------
    weight, bias, upper : Range
        W, of shape (inputs, hidden), b, and U, of shape (hidden, outputs).
    hidden, outputs : int
    rows : int
        Number of rows of [H'H | H'T] that a flat vector has room for.
    """

    weight: Range
    bias: Range
    upper: Range
    hidden: int
    outputs: int
    rows: int

    @classmethod
    def of(cls, layout: Layout, number: int) -> StackedModule:
        """Return module `number`, from 0, of a network with this layout."""
        weight, bias = (layout[f"hidden-{number + 1}/{name}"] for name in ("weight", "bias"))
        upper = layout[f"outputs-{number + 1}/weight"]
        hidden, outputs = upper.shape
        return cls(weight.range, bias.range, upper.range, hidden, outputs, layout.size // (hidden + outputs))

    @property
    def parts(self) -> int:
        """Number of flat vectors that [H'H | H'T] needs."""
        return -(-self.hidden // self.rows)

    def rows_of(self, part: int) -> slice:
        """Return the rows of a part."""
        return slice(part * self.rows, min(self.hidden, (part + 1) * self.rows))


def normal_equations(network: Network, batch: Batch, number: int, part: int) -> tuple[float, Any]:
    """Return the mean squared error of a module, and a vector that begins with a part of the mean of [H'H | H'T].

    Returns
    -------
    float
        As of `mpidl.nn.losses.MeanSquaredError`, at the present U.
    array, shape (size,)
    """
    (_, hidden, outputs), targets, found = _values(network, batch, number)
    rows = hidden[:, StackedModule.of(network.layout, number).rows_of(part)]
    size, width = rows.shape[1], hidden.shape[1] + targets.shape[1]
    sums = found[: size * width].reshape(size, width)
    np.matmul(rows.T, hidden, out=sums[:, : hidden.shape[1]])
    np.matmul(rows.T, targets, out=sums[:, hidden.shape[1] :])
    sums /= len(hidden)
    found[size * width :] = 0
    return float(np.mean((targets - outputs) ** 2)), found


def solve(sums: NDArray[np.float64], hidden: int, ridge: float) -> NDArray[np.float64]:
    """Return U = (H'H + ridge I)^-1 H'T.

    Parameters
    ----------
    sums : array (hidden, hidden + outputs)
        [H'H | H'T].

    Returns
    -------
    array (hidden, outputs)

    Raises
    ------
    numpy.linalg.LinAlgError
        The matrix is singular.
    """
    square = sums[:, :hidden] + ridge * np.eye(hidden)
    return np.asarray(np.linalg.solve(square, sums[:, hidden:]), np.float64)


def gradient(network: Network, batch: Batch, number: int) -> tuple[float, Any]:
    """Return the mean squared error of a module, and its gradient with respect to W and b; the rest is 0.

    At the U of `solve`, a minimum, that is the gradient where U follows W and b: that of the paper,
    dE/dW = -2 X' [((T - H U) U') * H * (1 - H)].

    Returns
    -------
    float
        As of `mpidl.nn.losses.MeanSquaredError`.
    array, shape (size,)
    """
    (inputs, hidden, outputs), targets, found = _values(network, batch, number)
    module = StackedModule.of(network.layout, number)
    error = targets - outputs
    upper = network.parameters[slice(*module.upper)].reshape(module.hidden, module.outputs)
    slopes = error @ upper.T
    slopes *= hidden
    np.subtract(1, hidden, out=hidden)
    slopes *= hidden
    slopes *= -2 / error.size
    found.fill(0)
    np.matmul(inputs.T, slopes, out=found[slice(*module.weight)].reshape(-1, module.hidden))
    slopes.sum(axis=0, out=found[slice(*module.bias)])
    return float(np.mean(error**2)), found


def _values(network: Network, batch: Batch, number: int) -> tuple[list[Any], Any, Any]:
    """Return X, H and the outputs of a module, T, and the vector for a gradient."""
    values, vector = network.values(batch, LAYERS * (number + 1))
    outputs, targets = values[-1], batch.targets
    if are_classes(targets):
        targets = np.eye(outputs.shape[1], dtype=outputs.dtype)[targets]
    return values[-LAYERS:], targets.astype(outputs.dtype, copy=False), vector
