"""A fully connected layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np

from mpidl.nn.activations import ACTIVATIONS
from mpidl.nn.initialisers import INITIALISERS
from mpidl.nn.layers.layer import Layer
from mpidl.sections import choose


@dataclass(frozen=True)
class Dense(Layer):
    """``activation(inputs @ weight + bias)``, over all elements of an input of any shape.

    Attributes
    ----------
    units
        Number of outputs.
    activation
        A name in `ACTIVATIONS`.
    initialiser
        A name in `INITIALISERS`, for the weight (inputs, units); the bias (units,) starts at zero.
    name
        The layer's name; empty for its index and type.
    """

    type: ClassVar[str] = "dense"

    units: Annotated[int, msgspec.Meta(ge=1)]
    activation: str = "identity"
    initialiser: str = "glorot_uniform"
    name: str = ""

    def __post_init__(self) -> None:
        choose(ACTIVATIONS, "activation", self.activation)
        choose(INITIALISERS, "initialiser", self.initialiser)

    def output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """See `Layer`."""
        return (self.units,)

    def parameters(self, input_shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """See `Layer`."""
        return {"weight": (prod(input_shape), self.units), "bias": (self.units,)}

    def initial(self, parameter: str, shape: tuple[int, ...], generator: np.random.Generator, dtype: str) -> np.ndarray:
        """See `Layer`."""
        initialiser = self.initialiser if parameter == "weight" else "zeros"
        return INITIALISERS[initialiser](generator, shape, dtype)

    def forward(self, xp: Any, parameters: Mapping[str, Any], inputs: Any, outputs: Any) -> None:
        """See `Layer`."""
        xp.matmul(inputs.reshape(len(inputs), -1), parameters["weight"], out=outputs)
        xp.add(outputs, parameters["bias"], out=outputs)
        ACTIVATIONS[self.activation].apply(xp, outputs)

    def backward(
        self,
        xp: Any,
        parameters: Mapping[str, Any],
        gradients: Mapping[str, Any],
        inputs: Any,
        outputs: Any,
        output_gradient: Any,
        input_gradient: Any | None,
    ) -> None:
        """See `Layer`."""
        ACTIVATIONS[self.activation].chain(xp, outputs, output_gradient)
        xp.matmul(inputs.reshape(len(inputs), -1).T, output_gradient, out=gradients["weight"])
        output_gradient.sum(axis=0, out=gradients["bias"])
        if input_gradient is not None:
            flat = input_gradient.reshape(len(inputs), -1)
            xp.matmul(output_gradient, parameters["weight"].T, out=flat)
