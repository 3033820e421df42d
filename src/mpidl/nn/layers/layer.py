"""What a layer is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np


class Layer(ABC):
    """A step of a network: its shapes, its parameters' shapes and initial values, and its maths.

    A subclass is a frozen dataclass whose fields are the keys of its configuration section. It holds neither
    parameters nor buffers: the network hands it views of the flat parameter and gradient vectors by name,
    and buffers for n samples, all C-contiguous arrays of the package `xp` (NumPy or CuPy) and of one dtype
    (float32 or float64).

    Attributes
    ----------
    type
        Its name in configurations.
    name
        The name of this layer in checkpoints; the network takes its index and type for an empty one.
    """

    type: ClassVar[str]
    name: str

    @abstractmethod
    def output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of one sample's output.

        Raises
        ------
        UsageError
            If the layer can't take such an input; one line, which the network completes with the layer's
            index.
        """

    def parameters(self, input_shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Return the shape of each parameter tensor, in their order in the flat vector."""
        return {}

    def initial(self, parameter: str, shape: tuple[int, ...], generator: np.random.Generator, dtype: str) -> np.ndarray:
        """Return the initial values of a parameter tensor, from `generator` alone."""
        raise NotImplementedError

    @abstractmethod
    def forward(self, xp: Any, parameters: Mapping[str, Any], inputs: Any, outputs: Any) -> None:
        """Compute `outputs` (n, *output_shape), overwriting it, from `inputs` (n, *input_shape)."""

    @abstractmethod
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
        """Compute the loss's gradients.

        Parameters
        ----------
        xp, parameters, inputs
            As `forward` had them.
        gradients
            Views like `parameters`; every element is overwritten.
        outputs
            What `forward` computed; whoever else needs them was served before, so they may be used as
            scratch space.
        output_gradient
            The loss's gradient with respect to `outputs`; may be used as scratch space too.
        input_gradient
            Overwritten with the gradient with respect to `inputs`; None where nobody needs it.
        """
