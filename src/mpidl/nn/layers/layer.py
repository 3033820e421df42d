"""The base classes of layers, and ways to divide a layer's values among the ranks that compute its parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, ClassVar, NamedTuple

import numpy as np

from mpidl.errors import UsageError, nearest, quoted
from mpidl.nn.activations import ACTIVATIONS
from mpidl.nn.initialisers import INITIALISERS
from mpidl.nn.layers.workspace import Buffer, Shape, Workspace
from mpidl.parameters.ranges import Box, Range, split
from mpidl.schema import Checked, choose


class Piece(NamedTuple):
    """A rank's part of a layer that is cut.

    Attributes
    ----------
    layer : Layer
        An ordinary layer, for inputs of the boxes' shapes.
    inputs : tuple of Box
        The part of each operand that it takes; empty if a joining layer doesn't take this operand.
    outputs : Box
        The part of the outputs that it computes. Where those of several ranks overlap, they are summands.
    tensors : dict of str to Box
        The parts of the uncut layer's tensors that it takes. The boxes of two ranks are the same or have no common
        element; the gradients of the same box are summed.
    """

    layer: Layer
    inputs: tuple[Box, ...]
    outputs: Box
    tensors: dict[str, Box]


@dataclass(frozen=True, kw_only=True)
class Layer(Checked, ABC):
    """A step of a network: the shapes of its values and parameters, their initial values, and its mathematics.

    A subclass is a frozen dataclass whose fields are the keys of its configuration section. It has neither parameters
    nor buffers: the network passes them in a `Workspace`.

    Attributes
    ----------
    type
        The layer's name in configurations.
    joins
        Whether the layer takes the outputs of several layers. `output_shape` then has one argument for each, and
        `forward` and `backward` take lists of inputs and of input gradients.
    takes_integers
        Whether the layer takes integer inputs unconverted. Other layers take the network's dtype.
    statistics
        Names of parameters that update rules don't change: their gradient is subtracted from them unchanged. A layer
        with statistics sums them over `Workspace.group`.
    cuts
        The ways in which the layer can be cut over ranks, besides "samples".
    name
        The layer's name in checkpoints; by default its index and type.
    inputs
        Names of the layers whose outputs it takes; by default the layer before it.
    cut
        The cut over the ranks of a partitioned model: one of `cuts`, or "samples", by which each rank computes a share
        of the minibatch with all of the layer's parameters. By default, the planner chooses the fastest one.
    """

    type: ClassVar[str]
    joins: ClassVar[bool] = False
    takes_integers: ClassVar[bool] = False
    statistics: ClassVar[tuple[str, ...]] = ()
    cuts: ClassVar[tuple[str, ...]] = ()

    name: str = ""
    inputs: tuple[str, ...] = ()
    cut: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        known = [*self.cuts, "samples"]
        if self.cut and self.cut not in known:
            raise UsageError(f"cut: {self.type} has no cut {quoted(self.cut)}{nearest(self.cut, known)}")

    @property
    def mixes(self) -> bool:
        """Whether an output depends on all the inputs along the last axis, which then can't be cut."""
        return False

    @abstractmethod
    def output_shape(self, input_shape: Shape) -> Shape:
        """Return the shape of one sample's output; UsageError, without the layer's index, for wrong inputs."""

    def parameters(self, input_shape: Shape) -> dict[str, Shape]:
        """Return the shape of each parameter tensor, in their order in the flat vector."""
        return {}

    def initial(self, parameter: str, shape: Shape, generator: np.random.Generator, values: np.ndarray) -> None:
        """Overwrite `values` (n,), a block of a flattened parameter tensor of this shape, with initial values."""
        values.fill(0)

    def buffers(self, input_shape: Shape) -> dict[str, Buffer]:
        """Return the memory that `forward` and `backward` need, by name."""
        return {}

    def operations(self, *input_shapes: Shape) -> int:
        """Return the floating-point operations of `forward` per sample; only products with weights count."""
        return 0

    def piece(self, box: Box, *input_shapes: Shape) -> Piece:
        """Return the piece that computes a box of the outputs; for an elementwise layer, the layer itself.

        Raises
        ------
        UsageError
            The layer can't compute it from a box of its inputs. The planner prepends the layer.
        """
        return Piece(self, (box,) * len(input_shapes), box, {})

    def pieces(self, how: str, number: int, parts: int, *input_shapes: Shape) -> list[Piece]:
        """Return the pieces of rank `number` of `parts`, where the layer is cut.

        Parameters
        ----------
        how
            One of `cuts`, or "samples": then the pieces apply to the rank's share of the samples.
        number, parts
            The rank's number, and the number of ranks.
        input_shapes
            Shapes of the operands, for one sample.

        Returns
        -------
        list of Piece
            One, or two, where the second takes the outputs of the first, summed over the ranks.

        Raises
        ------
        UsageError
            The layer can't be cut this way. The planner prepends the layer.
        """
        shape = self.output_shape(*input_shapes)
        if how == "samples":
            tensors = {name: Box.whole(each) for name, each in self.parameters(*input_shapes).items()}
            return [Piece(self, tuple(map(Box.whole, input_shapes)), Box.whole(shape), tensors)]
        box = divide(how, shape, parts)[number]
        if self.mixes and box.shape[-1] < shape[-1]:
            raise UsageError(f"an output depends on all {shape[-1]} {how}")
        return [self.piece(box, *input_shapes)]

    @abstractmethod
    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        """Overwrite `outputs` (n, *output_shape) with the layer's function of `inputs` (n, *input_shape)."""

    def backward(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        """Compute all gradients: `backward_inputs`, then `backward_weights`, unless both together are faster."""
        self.backward_inputs(work, inputs, outputs, output_gradient, input_gradient)
        self.backward_weights(work, inputs, output_gradient)

    @abstractmethod
    def backward_inputs(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        """Compute the gradient of the loss with respect to the inputs, without changing ``work.gradients``.

        Parameters
        ----------
        work, inputs
            The same as for `forward`.
        outputs
            The outputs of `forward`.
        output_gradient
            Gradient of the loss with respect to `outputs`; may be changed into the form that `backward_weights` takes.
        input_gradient
            Overwritten with the gradient with respect to `inputs`; None if it isn't needed.
        """

    def backward_weights(self, work: Workspace, inputs: Any, output_gradient: Any) -> None:
        """Overwrite every element of ``work.gradients``, some time after `backward_inputs`.

        Other samples may pass through the layer in between, with separate buffers; only scratch space is lost.

        Parameters
        ----------
        work, inputs
            The same as for `forward`.
        output_gradient
            As `backward_inputs` has left it; may be used as scratch space.
        """


class ByRows(Layer):
    """A layer that can compute some rows of its outputs before the others, with the same bits."""

    @abstractmethod
    def rows_from(self, rows: Range, input_shape: Shape) -> Range:
        """Return the rows of the outputs that depend only on some rows of the inputs; possibly none."""

    @abstractmethod
    def forward_rows(self, work: Workspace, inputs: Any, outputs: Any, rows: Range) -> None:
        """Compute rows that `rows_from` has returned, or all before or after these, from NumPy arrays."""

    @abstractmethod
    def end_rows(self, work: Workspace, outputs: Any) -> None:
        """Complete the outputs after all rows have been computed."""


class Activated(Layer):
    """A layer that ends with an activation.

    Attributes
    ----------
    activation
        A name in `ACTIVATIONS`.
    """

    activation: str

    def __post_init__(self) -> None:
        super().__post_init__()
        choose(ACTIVATIONS, "activation", self.activation)

    @property
    def mixes(self) -> bool:
        return ACTIVATIONS[self.activation].mixes

    def buffers(self, *input_shapes: Shape) -> dict[str, Buffer]:
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
    initialiser
        A name in `INITIALISERS`, used for the weight. The bias starts at zero.
    """

    initialiser: str

    def __post_init__(self) -> None:
        super().__post_init__()
        choose(INITIALISERS, "initialiser", self.initialiser)

    def initial(self, parameter: str, shape: Shape, generator: np.random.Generator, values: np.ndarray) -> None:
        INITIALISERS[self.initialiser if parameter == "weight" else "zeros"](generator, shape, values)


#: For each cut that divides a layer's outputs: the axes to divide, and the possible numbers of axes.
AXES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "rows": ((0,), (2, 3)),
    "tiles": ((0, 1), (2, 3)),
    "channels": ((-1,), (3,)),
    "units": ((-1,), (1, 2)),
}


@cache
def divide(how: str, shape: Shape, parts: int) -> tuple[Box, ...]:
    """Divide an array of one sample into `parts` boxes, as equal as possible.

    Parameters
    ----------
    how
        ``"rows"``, ``"tiles"`` (rows and columns, with the shortest borders), ``"channels"`` (the last of three axes)
        or ``"units"`` (the last of one or two).
    shape
        Shape of the array.
    parts
        Number of boxes.

    Raises
    ------
    UsageError
        The array has no such axes, or there are more parts than indices along them.
    """
    axes, dimensions = AXES[how]
    if len(shape) not in dimensions:
        raise UsageError(f"outputs of shape {shape} have no {how}")
    extents = [shape[axis] for axis in axes]
    counts = [parts] if len(axes) == 1 else _tiles(extents[0], extents[1], parts)
    divided = [divided_by(how, extent, count) for extent, count in zip(extents, counts, strict=True)]
    boxes = []
    for ranges in product(*divided):
        whole = list(Box.whole(shape).ranges)
        for axis, each in zip(axes, ranges, strict=True):
            whole[axis] = each
        boxes.append(Box(tuple(whole)))
    return tuple(boxes)


def divided_by(what: str, extent: int, parts: int) -> list[Range]:
    """Return the ranges of `parts` parts of an axis; UsageError if there are more parts than indices."""
    if parts > extent:
        noun = what.removesuffix("s") if extent == 1 else what
        raise UsageError(f"{extent} {noun}, expected at least one for each of {parts} ranks")
    return split(extent, parts)


def _tiles(height: int, width: int, parts: int) -> tuple[int, int]:
    """Return the numbers of tiles, down and across, with the shortest inner borders."""
    fitting = [
        (down, parts // down)
        for down in range(min(height, parts), 0, -1)
        if parts % down == 0 and parts // down <= width
    ]
    if not fitting:
        raise UsageError(f"{height} x {width} pixels can't be divided into {parts} tiles, one for each rank")
    return min(fitting, key=lambda tiles: (tiles[0] - 1) * width + (tiles[1] - 1) * height)
