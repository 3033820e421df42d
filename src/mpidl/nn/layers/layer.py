"""What a layer is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from mpidl.nn.activations import ACTIVATIONS
from mpidl.nn.initialisers import INITIALISERS
from mpidl.schema import choose

Shape = tuple[int, ...]


class Buffer(NamedTuple):
    """Memory that a layer needs.

    Attributes
    ----------
    shape
        Of what one sample needs; of all, if not `per_sample`.
    dtype
        The network's if not given.
    per_sample
        Whether the buffer has a first axis for the samples, and keeps its values from forward to backward. One that
        hasn't is scratch space, which any other layer may overwrite.
    kept
        Whether the buffer keeps its values though it isn't per sample.
    shape_on_device
        The shape on a GPU, if it is another: what a CPU's cache holds would leave most of a GPU idle.
    """

    shape: Shape
    dtype: str | None = None
    per_sample: bool = True
    kept: bool = False
    shape_on_device: Shape | None = None


@dataclass(slots=True)
class Workspace:
    """What the network lends to a layer: C-contiguous arrays of one package, for one number of samples.

    Attributes
    ----------
    xp
        NumPy or CuPy.
    parameters, gradients
        The layer's tensors by name, views of the network's flat vectors, of its dtype (float32 or float64).
    buffers
        Arrays by name, as `Layer.buffers` asks for them.
    training
        Whether a gradient is to be computed, and not only the outputs.
    random
        Returns a generator (numpy.random.Generator, or CuPy's) that depends on nothing but the network's seed, the
        layer and the batch.
    """

    xp: Any
    parameters: dict[str, Any]
    gradients: dict[str, Any]
    buffers: dict[str, Any]
    training: bool
    random: Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Layer(ABC):
    """A step of a network: its shapes, its parameters' shapes and initial values, and its maths.

    A subclass is a frozen dataclass whose fields are the keys of its configuration section. It holds neither
    parameters nor buffers: the network lends them, in a `Workspace`.

    Attributes
    ----------
    type
        Its name in configurations.
    joins
        Whether it takes the outputs of several layers, and not of one. `output_shape` then has an argument for
        each, and `forward` and `backward` have lists in place of the inputs and their gradients.
    statistics
        Names of parameters that update rules leave alone: their gradient is what is subtracted from them.
    name
        The name of this layer in checkpoints; the network takes its index and type for an empty one.
    inputs
        Names of the layers whose outputs it takes; the one before it if none is given.
    """

    type: ClassVar[str]
    joins: ClassVar[bool] = False
    statistics: ClassVar[tuple[str, ...]] = ()

    name: str = ""
    inputs: tuple[str, ...] = ()

    @abstractmethod
    def output_shape(self, input_shape: Shape) -> Shape:
        """Return the shape of one sample's output.

        Raises
        ------
        UsageError
            If the layer can't take such an input; one line, which the network completes with the layer's
            index.
        """

    def parameters(self, input_shape: Shape) -> dict[str, Shape]:
        """Return the shape of each parameter tensor, in their order in the flat vector."""
        return {}

    def initial(self, parameter: str, shape: Shape, generator: np.random.Generator, dtype: str) -> np.ndarray:
        """Return the initial values of a parameter tensor, from `generator` alone."""
        return np.zeros(shape, dtype)

    def buffers(self, input_shape: Shape) -> dict[str, Buffer]:
        """Return what memory `forward` and `backward` need."""
        return {}

    def operations(self, *input_shapes: Shape) -> int:
        """Return the floating-point operations of `forward` for a sample: multiplications and additions by weights."""
        return 0

    @abstractmethod
    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        """Compute `outputs` (n, *output_shape), overwriting it, from `inputs` (n, *input_shape)."""

    @abstractmethod
    def backward(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        """Compute the loss's gradients; every element of ``work.gradients`` is overwritten.

        Parameters
        ----------
        work, inputs
            As `forward` had them.
        outputs
            What `forward` computed; whoever else needs them was served before, so they may be used as
            scratch space.
        output_gradient
            The loss's gradient with respect to `outputs`; may be used as scratch space too.
        input_gradient
            Overwritten with the gradient with respect to `inputs`; None where nobody needs it.
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
    """A layer that ends with an activation; a subclass has the field ``activation``, a name in `ACTIVATIONS`."""

    activation: str

    def __post_init__(self) -> None:
        choose(ACTIVATIONS, "activation", self.activation)

    def buffers(self, *input_shapes: Shape) -> dict[str, Buffer]:
        """See `Layer`."""
        of_inputs = ACTIVATIONS[self.activation].of_inputs
        return {"before": Buffer(self.output_shape(*input_shapes))} if of_inputs else {}

    def activate(self, work: Workspace, outputs: Any, at: Any = ...) -> None:
        """Replace what the layer computed by the activation of it; `at` selects a contiguous part of the outputs."""
        if "before" in work.buffers:
            work.xp.copyto(work.buffers["before"][at], outputs[at])
        ACTIVATIONS[self.activation].apply(work.xp, outputs[at])

    def chain(self, work: Workspace, outputs: Any, gradient: Any, at: Any = ...) -> None:
        """Turn the gradient with respect to the outputs into that with respect to what they are the activation of."""
        ACTIVATIONS[self.activation].chain(work.xp, work.buffers.get("before", outputs)[at], gradient[at])


class Weighted(Activated):
    """A layer of weights, a bias and an activation; a subclass has the fields ``activation`` and ``initialiser``.

    Attributes
    ----------
    activation
        A name in `ACTIVATIONS`.
    initialiser
        A name in `INITIALISERS`, for the weight; the bias starts at zero.
    """

    initialiser: str

    def __post_init__(self) -> None:
        super().__post_init__()
        choose(INITIALISERS, "initialiser", self.initialiser)

    def initial(self, parameter: str, shape: Shape, generator: np.random.Generator, dtype: str) -> np.ndarray:
        """See `Layer`."""
        return INITIALISERS[self.initialiser if parameter == "weight" else "zeros"](generator, shape, dtype)
