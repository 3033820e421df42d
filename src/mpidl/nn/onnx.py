"""Networks as ONNX models.

Between layers, images have the package's order of axes, (n, height, width, channels); operators on images, which take
channels first, are between two transpositions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mpidl.errors import UsageError
from mpidl.extras import require
from mpidl.nn.kernels.cpu.elementwise import LEAK
from mpidl.nn.layers.conv2d import Conv2d
from mpidl.nn.layers.dense import Dense
from mpidl.nn.layers.embedding import Embedding
from mpidl.nn.layers.joining import Add, Concatenate
from mpidl.nn.layers.layer import Layer
from mpidl.nn.layers.normalisation import BatchNormalisation, LayerNormalisation
from mpidl.nn.layers.parameterless import Activation, Dropout, Flatten
from mpidl.nn.layers.pooling import AveragePool2d, L2Pool2d, MaxPool2d, Pooling2d
from mpidl.nn.network import Network
from mpidl.nn.sliding_windows import SlidingWindows, sliding_windows
from mpidl.paths import whole

#: Version of ONNX's operators: the first with Gelu. Files have the oldest format for it.
OPSET = 20
#: Maximum size of an ONNX file in bytes.
MOST = 2**31 - 1

#: Operators of activations: name and attributes.
ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "identity": ("Identity", {}),
    "relu": ("Relu", {}),
    "leaky_relu": ("LeakyRelu", {"alpha": LEAK}),
    "gelu": ("Gelu", {}),
    "sigmoid": ("Sigmoid", {}),
    "tanh": ("Tanh", {}),
    "softmax": ("Softmax", {"axis": -1}),
}
CHANNELS_FIRST, CHANNELS_LAST = (0, 3, 1, 2), (0, 2, 3, 1)


def to_onnx(network: Network, file: Path) -> int:
    """Write a network as an ONNX model, equivalent to `Network.predict`, and return the number of its tensors.

    The model takes ``inputs`` (n, *input_shape) and returns ``outputs`` (n, *output_shape), for any n. Inputs are those
    of the network: bytes scaled to [0, 1], and normalised; int64 ids for an embedding. The file appears when it is
    complete.

    Raises
    ------
    UsageError
        A layer has no operator in ONNX, the model is too large for a file, or ``onnx`` isn't installed.
    """
    onnx = require("onnx", "export")
    for name, layer in zip(network.graph.names, network.layers, strict=True):
        if type(layer) not in LAYERS:
            raise UsageError(f"--to onnx: layer {name!r}: {layer.type} has no operator in ONNX")
    if (nbytes := network.layout.size * network.dtype.itemsize) > MOST:
        raise UsageError(f"--to onnx: {nbytes:,} bytes of parameters, a file of ONNX holds {MOST:,}")
    graph = _Graph(onnx, network)
    with whole(file) as path:
        onnx.save_model(graph.model(), path)
    return len(network.layout)


class _Graph:
    """An ONNX graph that grows node by node, with the parameters and the name of the present layer.

    `float` and `integer` are ONNX's numbers of the network's dtype and of the ids' dtype.
    """

    def __init__(self, onnx: Any, network: Network) -> None:
        self._onnx, self._network = onnx, network
        self._nodes: list[Any] = []
        self._constants: dict[str, np.ndarray] = {}
        self.float = onnx.helper.np_dtype_to_tensor_dtype(network.dtype)
        self.dtype, self.integer = network.dtype, onnx.TensorProto.INT64
        values, graph = ["inputs"], network.graph
        views = network.layout.views(network.parameters)
        for index, (layer, self.name) in enumerate(zip(network.layers, graph.names, strict=True)):
            self.parameters = {key: views[f"{self.name}/{key}"] for key in layer.parameters(*graph.input_shapes(index))}
            taken = [self._of_dtype(values[value], layer) for value in graph.operands[index]]
            values.append(LAYERS[type(layer)](self, layer, graph.input_shapes(index), taken))
        self._nodes.append(onnx.helper.make_node("Identity", [values[-1]], ["outputs"]))

    def _of_dtype(self, value: str, layer: Layer) -> str:
        """Return a value in the dtype that a layer takes: only the network's inputs may be ids."""
        if value != "inputs" or not self._network.takes_integers or layer.takes_integers:
            return value
        return self.add("Cast", [value], to=self.float)

    def add(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add a node, and return the name of its output."""
        output = f"{self.name}/{operator.lower()}-{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(operator, inputs, [output], output, **attributes))
        return output

    def constant(self, key: str, values: Any) -> str:
        """Return the name of a constant of the layer, an array."""
        name = f"{self.name}/{key}"
        self._constants[name] = np.ascontiguousarray(values)
        return name

    def reshaped(self, value: str, shape: Sequence[int]) -> str:
        """Return a value with another shape of each sample."""
        return self.add("Reshape", [value, self.constant(f"shape-{len(self._nodes)}", np.array([-1, *shape]))])

    def activated(self, value: str, activation: str) -> str:
        """Return an activation of a value."""
        operator, attributes = ACTIVATIONS[activation]
        return value if activation == "identity" else self.add(operator, [value], **attributes)

    def model(self) -> Any:
        """Return the model."""
        helper, network = self._onnx.helper, self._network
        taken = helper.make_tensor_value_info(
            "inputs", self.integer if network.takes_integers else self.float, ["n", *network.input_shape]
        )
        given = helper.make_tensor_value_info("outputs", self.float, ["n", *network.output_shape])
        constants = [self._onnx.numpy_helper.from_array(array, name) for name, array in self._constants.items()]
        graph = helper.make_graph(self._nodes, "network", [taken], [given], constants)
        return helper.make_model_gen_version(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="mpidl"
        )


def _dense(graph: _Graph, layer: Dense, shapes: Any, inputs: list[str]) -> str:
    flat = graph.add("Flatten", inputs)
    tensors = [graph.constant(key, values) for key, values in graph.parameters.items()]
    return graph.activated(graph.add("Gemm", [flat, *tensors]), layer.activation)


def _on_images(graph: _Graph, value: str, shape: Sequence[int], add: Callable[[str], str]) -> str:
    """Apply an operator on images, with channels first, to a value of this shape."""
    images = value if len(shape) == 3 else graph.reshaped(value, (*shape, 1))
    return graph.add("Transpose", [add(graph.add("Transpose", [images], perm=CHANNELS_FIRST))], perm=CHANNELS_LAST)


def _windows(windows: SlidingWindows) -> dict[str, Any]:
    """Return the attributes of an operator with sliding windows."""
    return {"kernel_shape": windows.size, "strides": windows.stride, "pads": windows.padding + windows.after}


def _conv2d(graph: _Graph, layer: Conv2d, shapes: Any, inputs: list[str]) -> str:
    windows = sliding_windows(shapes[0], layer.size, layer.stride, layer.padding)
    weight = graph.constant("weight", graph.parameters["weight"].transpose(3, 2, 0, 1))
    bias = graph.constant("bias", graph.parameters["bias"])
    attributes = {**_windows(windows), "group": layer.groups}
    sums = _on_images(
        graph, inputs[0], shapes[0], lambda images: graph.add("Conv", [images, weight, bias], **attributes)
    )
    return graph.activated(sums, layer.activation)


def _pooling(operator: str, **attributes: Any) -> Callable[..., str]:
    def pool(graph: _Graph, layer: Pooling2d, shapes: Any, inputs: list[str]) -> str:
        windows = _windows(layer.windows(shapes[0])) | attributes
        found = _on_images(graph, inputs[0], shapes[0], lambda images: graph.add(operator, [images], **windows))
        return found if len(shapes[0]) == 3 else graph.reshaped(found, layer.output_shape(shapes[0]))

    return pool


def _batch_normalisation(graph: _Graph, layer: BatchNormalisation, shapes: Any, inputs: list[str]) -> str:
    # The channels are along the last axis, for samples of any shape; ONNX's operator takes the second axis.
    found = graph.parameters
    factor = found["scale"] / np.sqrt(found["variance"] + graph.dtype.type(layer.epsilon))
    centred = graph.add("Sub", [inputs[0], graph.constant("mean", found["mean"])])
    scaled = graph.add("Mul", [centred, graph.constant("factor", factor)])
    return graph.activated(graph.add("Add", [scaled, graph.constant("shift", found["shift"])]), layer.activation)


def _layer_normalisation(graph: _Graph, layer: LayerNormalisation, shapes: Any, inputs: list[str]) -> str:
    scale, shift = (graph.constant(key, graph.parameters[key]) for key in ("scale", "shift"))
    return graph.add("LayerNormalization", [inputs[0], scale, shift], axis=-1, epsilon=layer.epsilon)


def _embedding(graph: _Graph, layer: Embedding, shapes: Any, inputs: list[str]) -> str:
    ids = inputs[0]
    if ids != "inputs":
        ids = graph.add("Cast", [graph.add("Round", [ids])], to=graph.integer)
    return graph.add("Gather", [graph.constant("weight", graph.parameters["weight"]), ids])


#: The function that writes each type of layer: it returns the name of the outputs, given shapes and names of inputs.
LAYERS: dict[type[Layer], Callable[..., str]] = {
    Activation: lambda graph, layer, shapes, inputs: graph.activated(inputs[0], layer.activation),
    Add: lambda graph, layer, shapes, inputs: graph.activated(graph.add("Sum", inputs), layer.activation),
    AveragePool2d: _pooling("AveragePool", count_include_pad=1),
    BatchNormalisation: _batch_normalisation,
    Concatenate: lambda graph, layer, shapes, inputs: graph.add("Concat", inputs, axis=-1),
    Conv2d: _conv2d,
    Dense: _dense,
    Dropout: lambda graph, layer, shapes, inputs: inputs[0],
    Embedding: _embedding,
    Flatten: lambda graph, layer, shapes, inputs: graph.add("Flatten", inputs),
    L2Pool2d: _pooling("LpPool", p=2),
    LayerNormalisation: _layer_normalisation,
    MaxPool2d: _pooling("MaxPool"),
}
