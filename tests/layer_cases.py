"""Every layer at odd sizes, and a layer outside a network with its arrays."""

from __future__ import annotations

import numpy as np

from mpidl.nn import (
    Activation,
    Add,
    AveragePool2d,
    BatchNormalisation,
    Columns,
    Concatenate,
    Conv2d,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    Interaction,
    L2Pool2d,
    LayerNormalisation,
    LocalContrastNormalisation,
    LocallyConnected2d,
    MaxPool2d,
    kernels,
)
from mpidl.nn.graph import Node, Value
from mpidl.nn.layers.embedding import EmbeddingRows
from mpidl.nn.layers.layer import Layer
from mpidl.nn.layers.local_contrast_normalisation import CroppedNormalisation
from mpidl.nn.layers.workspace import Workspace
from mpidl.nn.workspaces import Passes
from mpidl.parameters import Box, Range

#: Layers, each with the shape of one sample's inputs, or a list of shapes if the layer joins several.
CASES: list[tuple[Layer, tuple[int, ...] | list[tuple[int, ...]]]] = [
    (Dense(5), (3, 2)),
    (Dense(1, "tanh"), (7,)),
    (Dense(4, "gelu", bias=False), (5, 3)),
    *((Activation(name), (3, 5)) for name in ("relu", "leaky_relu", "gelu", "sigmoid", "tanh", "softmax")),
    (Conv2d(3, 3), (7, 5, 2)),
    (Conv2d(3, 3, "tanh"), (7, 5)),
    (Conv2d(4, [3, 2], stride=[2, 1], padding=[1, 1]), (8, 5, 3)),
    (Conv2d(3, 1, "gelu"), (3, 5, 2)),
    (Conv2d(6, 3, groups=3, padding="same"), (5, 7, 3)),
    (Conv2d(4, 5, stride=3, padding=2, groups=2), (9, 8, 4)),
    (Conv2d(2, 3, stride=4), (3, 11, 1)),
    (Conv2d(8, 3, "tanh"), (7, 10, 9)),
    (Conv2d(9, 3, "gelu", padding=[2, 0]), (3, 6, 8)),
    (Conv2d(8, 5, padding="same"), (7, 5, 8)),
    (Conv2d(8, 5, padding=[0, 4]), (9, 3, 9)),
    (Conv2d(3, 3, padding=[[0, 2], [1, 0]]), (7, 5)),
    (Conv2d(4, [4, 3], "tanh", stride=[2, 3], padding=[[3, 1], 2]), (9, 8, 3)),
    (Conv2d(4, 3, groups=2, padding=[1, [2, 0]]), (6, 7, 2)),
    (Conv2d(9, 3, padding=[[2, 0], [0, 1]]), (7, 6, 8)),
    (Conv2d(8, 5, "relu", padding=[[0, 4], [3, 1]]), (6, 9, 8)),
    (LocallyConnected2d(3, 3), (6, 5, 2)),
    (LocallyConnected2d(2, [2, 3], "gelu", stride=[1, 2], padding=1), (5, 7)),
    (LocallyConnected2d(5, 5, "relu", stride=2, padding=[2, 0]), (5, 9, 1)),
    (LocallyConnected2d(3, 3, padding=[[2, 0], [1, 2]]), (4, 5, 2)),
    (LocalContrastNormalisation(), (7, 11, 3)),
    (LocalContrastNormalisation(3), (4, 5)),
    (LocalContrastNormalisation(5, threshold=1.1), (6, 7, 2)),
    (LocalContrastNormalisation(1, threshold=0.5), (3, 2, 5)),
    (LocalContrastNormalisation(3), (5, 1, 1)),
    (CroppedNormalisation(size=3, kept=(Range(1, 6), Range(0, 4))), (8, 7, 2)),
    *(
        case
        for layer in (MaxPool2d, AveragePool2d, L2Pool2d)
        for case in (
            (layer(), (5, 7, 3)),
            (layer(3, 2), (8, 5)),
            (layer([3, 2], [2, 1], [1, 0]), (6, 5, 9)),
            (layer(5, 1, padding="same"), (6, 7, 2)),
            (layer(2, 3, padding=1), (7, 9, 1)),
            (layer(4, [3, 5], padding=3), (3, 9, 2)),
            (layer(3, 2, padding=[[2, 0], [0, 1]]), (6, 8, 3)),
            (layer([4, 2], [2, 1], padding=[[0, 3], 1]), (5, 4)),
        )
    ),
    (BatchNormalisation(), (5, 3, 2)),
    (BatchNormalisation("relu"), (7,)),
    (BatchNormalisation("gelu", momentum=0.5), (3, 1, 5)),
    (LayerNormalisation(), (7,)),
    (LayerNormalisation(epsilon=0.1), (3, 5, 4)),
    (Dropout(0.4), (5, 3)),
    (Embedding(11, 3), (7,)),
    (EmbeddingRows(vocabulary=11, units=3, rows=Range(2, 8)), (7,)),
    (Columns(2, 3), (7,)),
    (Columns(1, 5, transform="log1p"), (4, 6)),
    (Flatten(), (3, 2, 5)),
    (Add("tanh"), [(3, 5), (3, 5), (3, 5)]),
    (Add("gelu"), [(7,), (7,)]),
    (Concatenate(), [(3, 5, 1), (3, 5, 4)]),
    (Interaction(), [(3,), (4, 3)]),
    (Interaction(), [(2, 5), (5,), (3, 5), (5,)]),
    (Interaction(), [(6, 1)]),
]


def name_of(case) -> str:
    """Return the name of a case for pytest."""
    layer, shape = case
    return f"{layer.type}-{CASES.index(case)}-{shape}".replace(" ", "")


class Alone:
    """A layer with random parameters and inputs of its own.

    Attributes
    ----------
    variables : list of array
        What the outputs depend on and what has a gradient: the inputs, then the parameters that are trained.
    """

    def __init__(self, layer, input_shape, samples=4, dtype="float64", seed=3, training=True, xp=np):
        self.layer, self.samples = layer, samples
        shapes = list(input_shape) if layer.joins else [tuple(input_shape)]
        self.random = np.random.default_rng(seed)
        self.inputs = [xp.asarray(self.random.normal(size=(samples, *shape)).astype(dtype)) for shape in shapes]
        if isinstance(layer, Embedding):
            (ids,) = self.inputs
            ids[...] = xp.asarray(self.random.integers(0, layer.vocabulary, ids.shape))
        self.parameters = {
            name: xp.asarray((0.5 + self.random.random(shape)).astype(dtype) - (name not in ("variance", "scale")))
            for name, shape in layer.parameters(*shapes).items()
        }
        self.gradients = {name: xp.full_like(value, np.nan) for name, value in self.parameters.items()}
        self.output_shape = layer.output_shape(*shapes)
        self.seed = seed
        values = [*(Value(shape, inputs=Box.whole(shape)) for shape in shapes), Value(self.output_shape)]
        operands = tuple(range(len(shapes)))
        passes = Passes(
            xp, dtype, values, [Node(layer, operands, len(shapes), (True,) * len(shapes))],
            lambda _, buffers: Workspace(
                xp, kernels.of(xp), self.parameters, self.gradients, buffers, training,
                lambda: (seed, 1, 2, 3),
            ),
        )  # fmt: skip
        (call,) = passes.take(samples).calls
        self.outputs, self.output_gradient, self.work = call.outputs, call.output_gradient, call.workspace
        self.input_gradients = [xp.full_like(each, np.nan) for each in self.inputs]
        trained = [name for name in self.parameters if name not in layer.statistics]
        self.variables = [*self.inputs, *(self.parameters[name] for name in trained)]
        self._trained = trained

    def forward(self):
        """Return the outputs, in the layer's own array."""
        self.layer.forward(self.work, self.inputs if self.layer.joins else self.inputs[0], self.outputs)
        return self.outputs

    def backward(self, y):
        """Return the gradient of <outputs, y> with respect to each of the `variables`."""
        self.forward()
        self.output_gradient[:] = y
        joins = self.layer.joins
        self.layer.backward(
            self.work, self.inputs if joins else self.inputs[0], self.outputs, self.output_gradient,
            self.input_gradients if joins else self.input_gradients[0],
        )  # fmt: skip
        return [*self.input_gradients, *(self.gradients[name] for name in self._trained)]

    def first_part(self, y, needed=True):
        """Compute the gradients of <outputs, y> with respect to the inputs only, if they are needed."""
        self.forward()
        self.output_gradient[:] = y
        joins, found = self.layer.joins, self.input_gradients if needed else [None] * len(self.inputs)
        inputs, gradients = (each if joins else each[0] for each in (self.inputs, found))
        self.layer.backward_inputs(self.work, inputs, self.outputs, self.output_gradient, gradients)

    def second_part(self):
        """Compute those with respect to the parameters, after the first part."""
        inputs = self.inputs if self.layer.joins else self.inputs[0]
        self.layer.backward_weights(self.work, inputs, self.output_gradient)
