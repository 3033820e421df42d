"""A chain of layers and a loss."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from mpidl.data.batch import Batch
from mpidl.errors import UsageError
from mpidl.nn.buffers import Buffers
from mpidl.nn.layers.layer import Layer
from mpidl.nn.losses import Loss, SoftmaxCrossEntropy, are_classes
from mpidl.parameters.layout import Layout
from mpidl.parameters.ranges import Range


class Network:
    """A model (`mpidl.nn.model.Model`) made of layers, each taking the outputs of the one before it.

    Nothing is allocated before it is needed: a rank that only serves parameters asks for `layout` and
    `initial`.

    Parameters
    ----------
    layers
        From inputs to outputs.
    input_shape
        Shape of one sample.
    loss
        Of the last layer's outputs; softmax cross-entropy if not given.
    dtype
        Of parameters, gradient and activations: "float32" or "float64".
    seed
        Of the initial parameters, at least zero.
    xp
        NumPy or CuPy: where parameters, gradient and activations lie.

    Attributes
    ----------
    layout : Layout
        Tensors in the flat vectors, such as ``"0-dense/weight"``.
    input_shape, output_shape : tuple of int
        Of one sample.

    Raises
    ------
    UsageError
        If there is no layer, two layers share a name, a layer can't take what the one before it gives, or
        the dtype is another.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        input_shape: Sequence[int],
        loss: Loss | None = None,
        dtype: str = "float32",
        seed: int = 0,
        xp: Any = np,
    ) -> None:
        if not layers:
            raise UsageError("model.layer: no layer, expected at least one")
        if dtype not in ("float32", "float64"):
            raise UsageError(f"dtype: expected 'float32' or 'float64', found {dtype!r}")
        self.layers = tuple(layers)
        self.input_shape = tuple(input_shape)
        self.loss = SoftmaxCrossEntropy() if loss is None else loss
        self.dtype = str(dtype)
        self.seed = seed
        self.xp = xp
        self._names = layer_names(self.layers)
        shapes, tensors = [self.input_shape], []
        for index, (layer, name) in enumerate(zip(self.layers, self._names, strict=True)):
            shapes.append(_output_shape(index, layer, shapes[-1]))
            tensors += [(f"{name}/{key}", shape) for key, shape in layer.parameters(shapes[-2]).items()]
        self.output_shape = shapes[-1]
        self.layout = Layout(tensors)
        self._parameters: Any = None
        self._inputs = Buffers(xp, shapes[:1], self.dtype)
        self._outputs = Buffers(xp, shapes[1:], self.dtype)
        self._output_gradients = Buffers(xp, shapes[1:], self.dtype)

    @property
    def parameters(self) -> Any:
        """Flat vector (layout.size,), allocated and initialised at its first use.

        Write into it in place, or set another: the network then computes with that vector itself.
        """
        if self._parameters is None:
            self._parameters = self.xp.asarray(self.initial(Range(0, self.layout.size)))
        return self._parameters

    @parameters.setter
    def parameters(self, vector: Any) -> None:
        self._parameters = vector
        self.__dict__.pop("_parameter_views", None)

    @cached_property
    def _gradient(self) -> Any:
        return self.xp.empty(self.layout.size, self.dtype)

    @cached_property
    def _parameter_views(self) -> list[dict[str, Any]]:
        return self._views_by_layer(self.parameters)

    @cached_property
    def _gradient_views(self) -> list[dict[str, Any]]:
        return self._views_by_layer(self._gradient)

    def _views_by_layer(self, vector: Any) -> list[dict[str, Any]]:
        by_layer: dict[str, dict[str, Any]] = {name: {} for name in self._names}
        for path, view in self.layout.views(vector).items():
            name, _, parameter = path.rpartition("/")
            by_layer[name][parameter] = view
        return list(by_layer.values())

    def initial(self, whole: Range) -> np.ndarray:
        """Return the initial values of the parameters [start, stop).

        They depend on the seed and on a tensor's ordinal in the layout, never on the range asked for; only
        tensors that overlap the range are generated.

        Parameters
        ----------
        whole
            A range within the flat vector.

        Returns
        -------
        numpy.ndarray (size of the range,)
            Of the network's dtype, in host memory.

        Raises
        ------
        ValueError
            If the range isn't within the flat vector.
        """
        whole = Range(*whole)
        if not 0 <= whole.start <= whole.stop <= self.layout.size:
            raise ValueError(f"parameters {tuple(whole)} of {self.layout.size}")
        layers = dict(zip(self._names, self.layers, strict=True))
        values = np.empty(whole.size, self.dtype)
        for ordinal, part in enumerate(self.layout):
            if shared := part.range.intersect(whole):
                name, _, parameter = part.name.rpartition("/")
                generator = np.random.default_rng([self.seed, ordinal])
                tensor = layers[name].initial(parameter, part.shape, generator, self.dtype).reshape(-1)
                values[slice(*shared.shift(-whole.start))] = tensor[slice(*shared.shift(-part.start))]
        return values

    def _forward(self, inputs: Any) -> list[Any]:
        """Return the inputs in the network's dtype, and the outputs of every layer."""
        if inputs.shape[1:] != self.input_shape:
            expected = ", ".join(map(str, self.input_shape))
            raise UsageError(f"a batch of inputs {inputs.shape}, the network takes (n, {expected})")
        if inputs.dtype != self.dtype:
            (buffer,) = self._inputs.take(len(inputs))
            self.xp.copyto(buffer, inputs)
            inputs = buffer
        values = [inputs, *self._outputs.take(len(inputs))]
        for index, layer in enumerate(self.layers):
            layer.forward(self.xp, self._parameter_views[index], values[index], values[index + 1])
        return values

    def _loss(self, outputs: Any, targets: Any, gradient: Any) -> float:
        expected = outputs.shape[:1] if are_classes(targets) else outputs.shape
        if targets.shape != expected:
            raise UsageError(
                f"targets {targets.shape} of {targets.dtype}, outputs {outputs.shape} "
                f"take integers {outputs.shape[:1]} or floats {outputs.shape}"
            )
        return self.loss.loss_and_gradient(self.xp, outputs, targets, gradient)

    def loss_and_gradient(self, batch: Batch) -> tuple[float, Any]:
        """Return the mean loss over the batch and its gradient.

        Allocates nothing of the size of an activation or a tensor once it has seen the largest batch.

        Parameters
        ----------
        batch
            Inputs (n, *input_shape), converted where they aren't of the network's dtype; targets: class ids
            (n,) or floats (n, outputs).

        Returns
        -------
        loss : float
            Mean over the batch.
        gradient : array (layout.size,)
            With respect to `parameters`; the next call overwrites it.

        Raises
        ------
        UsageError
            If the shapes don't fit.
        """
        values = self._forward(batch.inputs)
        gradients = self._output_gradients.take(len(batch.inputs))
        loss = self._loss(values[-1], batch.targets, gradients[-1])
        for index in reversed(range(len(self.layers))):
            self.layers[index].backward(
                self.xp,
                self._parameter_views[index],
                self._gradient_views[index],
                values[index],
                values[index + 1],
                gradients[index],
                gradients[index - 1] if index else None,
            )
        return loss, self._gradient

    def evaluate(self, batch: Batch) -> tuple[float, int | float]:
        """Return the sum of the samples' losses and the number of correct predictions.

        Takes batches as `loss_and_gradient` does. The number is NaN for squared errors of float targets.
        """
        outputs = self._forward(batch.inputs)[-1]
        gradient = self._output_gradients.take(len(outputs))[-1]
        loss = self._loss(outputs, batch.targets, gradient) * len(outputs)
        return loss, self.loss.correct(self.xp, outputs, batch.targets)

    def predict(self, inputs: Any) -> Any:
        """Return the last layer's outputs (n, *output_shape) for inputs (n, *input_shape), as a new array."""
        return self._forward(inputs)[-1].copy()


def check(network: Network, classes: int | None) -> None:
    """Check that a network has as many outputs as the data has classes; data without classes (None) fits any.

    Raises
    ------
    UsageError
        Saying both numbers.
    """
    outputs = prod(network.output_shape)
    if classes is not None and outputs != classes:
        raise UsageError(f"model.layer: the last layer has {outputs} units, the data {classes} classes")


def layer_names(layers: Sequence[Layer]) -> list[str]:
    """Return each layer's own name, or its index and type: ``"0-dense"``.

    Raises
    ------
    UsageError
        If two layers share a name, or a name has a slash, which separates layer and tensor.
    """
    names: list[str] = []
    for index, layer in enumerate(layers):
        name = layer.name or f"{index}-{layer.type}"
        if "/" in name:
            raise UsageError(f"model.layer[{index}].name: expected a name without '/', found {name!r}")
        if name in names:
            raise UsageError(f"model.layer[{index}].name: layer {names.index(name)} is named {name!r} too")
        names.append(name)
    return names


def _output_shape(index: int, layer: Layer, input_shape: tuple[int, ...]) -> tuple[int, ...]:
    if not all(extent >= 1 for extent in input_shape):
        raise UsageError(f"model.layer[{index}]: inputs of shape {input_shape} have no elements")
    try:
        return layer.output_shape(input_shape)
    except UsageError as error:
        raise UsageError(f"model.layer[{index}]: {error}") from None
