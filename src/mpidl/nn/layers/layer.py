"""The base classes of layers, and the memory that a layer works on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from mpidl.nn.activations import ACTIVATIONS
from mpidl.nn.initialisers import INITIALISERS
from mpidl.schema import Checked, choose

Shape = tuple[int, ...]


class Buffer(NamedTuple):
    """Memory that a layer needs.

    Attributes
    ----------
    shape
        Shape for one sample, or the whole shape if not `per_sample`.
    dtype
        The network's dtype if None.
    per_sample
        Whether the buffer has a first axis for the samples and keeps its values from `forward` to `backward`. Other
        buffers are scratch space that any layer may overwrite.
    kept
        Whether a buffer that isn't per sample keeps its values nevertheless.
    shape_on_device
        Shape on a GPU, if it differs: what fits in a CPU's cache would leave most of a GPU idle.
    """

    shape: Shape
    dtype: str | None = None
    per_sample: bool = True
    kept: bool = False
    shape_on_device: Shape | None = None


@dataclass(slots=True)
class Workspace:
    """The arrays that a layer computes with: C-contiguous, and owned by the network.

    Attributes
    ----------
    xp
        NumPy or CuPy.
    kernels
        The loops of `mpidl.nn.kernels` for arrays of `xp`.
    parameters, gradients
        The layer's tensors by name: views of the network's flat vectors, float32 or float64.
    buffers
        Arrays by name, as requested by `Layer.buffers`.
    training
        Whether a gradient will be computed, or only the outputs.
    random
        Returns a random generator (numpy.random.Generator, or CuPy's) that depends only on the network's seed, the
        layer and the batch.
    """

    xp: Any
    kernels: Any
    parameters: dict[str, Any]
    gradients: dict[str, Any]
    buffers: dict[str, Any]
    training: bool
    random: Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Layer(Checked, ABC):
    """A step of a network: its shapes, its parameters' shapes and initial values, and its maths.

    A subclass is a frozen dataclass whose fields are the keys of its configuration section. It holds neither
    parameters nor buffers: the network passes them in a `Workspace`.

    Attributes
    ----------
    type
        The layer's name in configurations.
    joins
        Whether the layer takes the outputs of several layers. `output_shape` then has one argument for each, and
        `forward` and `backward` take lists of inputs and of input gradients.
    takes_integers
        Whether the layer takes integer inputs as they are. Other layers take the network's dtype.
    statistics
        Names of parameters that update rules leave alone: their gradient is subtracted from them as it is.
    name
        The layer's name in checkpoints. If empty, the network uses the layer's index and type.
    inputs
        Names of the layers whose outputs it takes. If empty, the layer takes those of the layer before it.
    """

    type: ClassVar[str]
    joins: ClassVar[bool] = False
    takes_integers: ClassVar[bool] = False
    statistics: ClassVar[tuple[str, ...]] = ()

    name: str = ""
    inputs: tuple[str, ...] = ()

    @abstractmethod
    def output_shape(self, input_shape: Shape) -> Shape:
        """Return the shape of one sample's output.

        Raises
        ------
        UsageError
            If the layer can't take such an input. The network prepends the layer's index to the message.
        """

    def parameters(self, input_shape: Shape) -> dict[str, Shape]:
        """Return the shape of each parameter tensor, in their order in the flat vector."""
        return {}

    def initial(self, parameter: str, shape: Shape, generator: np.random.Generator, dtype: str) -> np.ndarray:
        """Return the initial values of a parameter tensor, from `generator` alone."""
        return np.zeros(shape, dtype)

    def buffers(self, input_shape: Shape) -> dict[str, Buffer]:
        """Return the memory that `forward` and `backward` need, by name."""
        return {}

    def operations(self, *input_shapes: Shape) -> int:
        """Return the floating-point operations of `forward` per sample; only products with weights count."""
        return 0

    @abstractmethod
    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        """Overwrite `outputs` (n, *output_shape) with the layer's function of `inputs` (n, *input_shape)."""

    @abstractmethod
    def backward(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        """Compute the gradients of the loss, and overwrite every element of ``work.gradients``.

        Parameters
        ----------
        work, inputs
            The same as for `forward`.
        outputs
            What `forward` computed. No other layer needs it any more, so it may be used as scratch space.
        output_gradient
            Gradient of the loss with respect to `outputs`; may be used as scratch space too.
        input_gradient
            Overwritten with the gradient with respect to `inputs`; None if it isn't needed.
        """


class Joining(Layer):
    """A layer without parameters that takes the outputs of several."""

    joins: ClassVar[bool] = True

    def parameters(self, *input_shapes: Shape) -> dict[str, Shape]:
        """See `Layer`."""
        return {}

    def buffers(self, *input_shapes: Shape) -> dict[str, Buffer]:
        """See `Layer`."""
        return {}


class Activated(Layer):
    """A layer that ends with an activation. Its field ``activation`` is a name in `ACTIVATIONS`."""

    activation: str

    def __post_init__(self) -> None:
        super().__post_init__()
        choose(ACTIVATIONS, "activation", self.activation)

    def buffers(self, *input_shapes: Shape) -> dict[str, Buffer]:
        """See `Layer`."""
        needs_inputs = ACTIVATIONS[self.activation].needs_inputs
        return {"before": Buffer(self.output_shape(*input_shapes))} if needs_inputs else {}

    def activate(self, work: Workspace, outputs: Any, at: Any = ...) -> None:
        """Apply the activation to the outputs in place; `at` selects a contiguous part of them."""
        if "before" in work.buffers:
            work.xp.copyto(work.buffers["before"][at], outputs[at])
        ACTIVATIONS[self.activation].apply(work.xp, outputs[at])

    def backprop(self, work: Workspace, outputs: Any, gradient: Any, at: Any = ...) -> None:
        """Replace the gradient with respect to the outputs by that with respect to the activation's inputs."""
        ACTIVATIONS[self.activation].backprop(work.xp, work.buffers.get("before", outputs)[at], gradient[at])


class Weighted(Activated):
    """A layer with a weight, a bias and an activation.

    Attributes
    ----------
    activation
        A name in `ACTIVATIONS`.
    initialiser
        A name in `INITIALISERS`, used for the weight. The bias starts at zero.
    """

    initialiser: str

    def __post_init__(self) -> None:
        super().__post_init__()
        choose(INITIALISERS, "initialiser", self.initialiser)

    def initial(self, parameter: str, shape: Shape, generator: np.random.Generator, dtype: str) -> np.ndarray:
        """See `Layer`."""
        return INITIALISERS[self.initialiser if parameter == "weight" else "zeros"](generator, shape, dtype)
