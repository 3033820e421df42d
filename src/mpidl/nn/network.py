"""Networks: a graph of layers and a loss."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from mpidl.data.batch import Batch
from mpidl.errors import UsageError, quoted
from mpidl.nn import kernels
from mpidl.nn.graph import Graph
from mpidl.nn.layers.layer import Layer, Workspace
from mpidl.nn.losses import Loss, SoftmaxCrossEntropy, are_classes
from mpidl.nn.model import CompleteModel, LayerSummary
from mpidl.nn.regularisation import Regularisation
from mpidl.nn.workspaces import Pass, Passes
from mpidl.parameters.layout import Layout
from mpidl.parameters.ranges import Range


class Network(CompleteModel):
    """A model (`mpidl.nn.model.Model`) made of layers, each taking the outputs of the previous one or of any others.

    Nothing is allocated before it is needed: a server only uses `layout` and `initial`.

    Parameters
    ----------
    layers
        The layers, each after those whose outputs it takes.
    input_shape
        Shape of one sample.
    loss
        Loss of the last layer's outputs; softmax cross-entropy by default.
    dtype
        Dtype of parameters, gradient and activations: "float32" or "float64".
    seed
        Seed of the initial parameters and of dropout, at least zero.
    xp
        NumPy or CuPy: the package of parameters, gradient and activations.
    regularisation
        Weight decay and gradient clipping; none by default.

    Attributes
    ----------
    layout : Layout
        The tensors in the flat vectors, such as ``"0-dense/weight"``.
    statistics : list of Range
        Ranges of parameters that update rules leave alone.
    input_shape, output_shape : tuple of int
        Shapes of one sample.

    Raises
    ------
    UsageError
        If there is no layer, two layers have the same name, a layer can't take its inputs, or the dtype is
        unknown.
    """

    movable = True

    def __init__(
        self,
        layers: Sequence[Layer],
        input_shape: Sequence[int],
        *,
        loss: Loss | None = None,
        dtype: str = "float32",
        seed: int = 0,
        xp: Any = np,
        regularisation: Regularisation | None = None,
    ) -> None:
        if not layers:
            raise UsageError("model.layer: no layer, expected at least one")
        if dtype not in ("float32", "float64"):
            raise UsageError(f"dtype: expected 'float32' or 'float64', found {quoted(dtype)}")
        self.layers = tuple(layers)
        self.input_shape = tuple(input_shape)
        self.loss = SoftmaxCrossEntropy() if loss is None else loss
        self.dtype = np.dtype(dtype)
        self.seed = seed
        self.xp = xp
        self.regularisation = Regularisation() if regularisation is None else regularisation
        self.graph = graph = Graph(layers, self.input_shape)
        self.output_shape = graph.shapes[-1]
        tensors, statistics = [], []
        for index, (layer, name) in enumerate(zip(layers, graph.names, strict=True)):
            tensors += [(f"{name}/{key}", shape) for key, shape in layer.parameters(*graph.input_shapes(index)).items()]
            statistics += [f"{name}/{key}" for key in layer.statistics]
        self.layout = Layout(tensors)
        self.statistics = [self.layout[name].range for name in statistics]
        self._weights = [part.range for part in self.layout if part.name.endswith("/weight")]
        self._trained = [part.range for part in self.layout if part.name not in statistics]
        # Layers that take the network's inputs before they are converted.
        self._of_integers = {i for i, layer in enumerate(layers) if layer.takes_integers and graph.operands[i] == (0,)}
        self.takes_integers = bool(self._of_integers)
        self._parameters: Any = None
        self._number = 0
        buffers = [layer.buffers(*graph.input_shapes(index)) for index, layer in enumerate(layers)]
        self._passes = Passes(
            xp, self.dtype.name, self.input_shape, graph.shapes[1:], graph.shared[1:], buffers, self._workspace
        )

    @property
    def parameters(self) -> Any:
        """The flat vector (layout.size,), allocated and initialised at its first use.

        It may be written into, or replaced by another vector, with which the network then computes.
        """
        if self._parameters is None:
            self.parameters = self.xp.asarray(self.initial(Range(0, self.layout.size)))
        return self._parameters

    @parameters.setter
    def parameters(self, vector: Any) -> None:
        self._parameters = vector
        for path, view in self.layout.views(vector).items():
            name, _, parameter = path.rpartition("/")
            self._parameter_views[name][parameter] = view

    @cached_property
    def _parameter_views(self) -> dict[str, dict[str, Any]]:
        return {name: {} for name in self.graph.names}

    @cached_property
    def _gradient(self) -> Any:
        return self.xp.empty(self.layout.size, self.dtype)

    @cached_property
    def _gradient_views(self) -> dict[str, dict[str, Any]]:
        by_layer: dict[str, dict[str, Any]] = {name: {} for name in self.graph.names}
        for path, view in self.layout.views(self._gradient).items():
            name, _, parameter = path.rpartition("/")
            by_layer[name][parameter] = view
        return by_layer

    def on(self, xp: Any) -> Network:
        """Return the same network, without parameters yet, for the arrays of another package."""
        return Network(
            self.layers, self.input_shape, loss=self.loss, dtype=self.dtype.name, seed=self.seed, xp=xp,
            regularisation=self.regularisation,
        )  # fmt: skip

    def _workspace(self, index: int, buffers: dict[str, Any]) -> Workspace:
        name = self.graph.names[index]
        return Workspace(
            self.xp, kernels.of(self.xp), self._parameter_views[name], self._gradient_views[name], buffers, False,
            lambda: self.xp.random.default_rng([self.seed, index, self._number]),
        )  # fmt: skip

    def activation_bytes(self, samples: int) -> int:
        """Return the bytes of outputs, their gradients and the layers' buffers for a batch; allocate nothing."""
        return self._passes.nbytes(samples)

    def initial(self, whole: Range) -> np.ndarray:
        """Return the initial values of the parameters [start, stop).

        They depend on the seed and on a tensor's position in the layout, not on the range. Only the tensors that
        overlap the range are generated.

        Parameters
        ----------
        whole
            A range within the flat vector.

        Returns
        -------
        numpy.ndarray (whole.size,)
            In the network's dtype, in host memory.

        Raises
        ------
        ValueError
            If the range isn't within the flat vector.
        """
        whole = Range(*whole)
        if not 0 <= whole.start <= whole.stop <= self.layout.size:
            raise ValueError(f"parameters {tuple(whole)} of {self.layout.size}")
        layers = dict(zip(self.graph.names, self.layers, strict=True))
        values = np.empty(whole.size, self.dtype)
        for ordinal, part in enumerate(self.layout):
            if shared := part.range.intersect(whole):
                name, _, parameter = part.name.rpartition("/")
                generator = np.random.default_rng([self.seed, ordinal])
                tensor = layers[name].initial(parameter, part.shape, generator, self.dtype.name).reshape(-1)
                values[slice(*shared.shift(-whole.start))] = tensor[slice(*shared.shift(-part.start))]
        return values

    def _forward(self, batch: Batch, training: bool) -> Pass:
        """Compute the outputs of all layers."""
        inputs = batch.inputs
        if inputs.shape[1:] != self.input_shape:
            expected = ", ".join(map(str, self.input_shape))
            raise UsageError(f"a batch of inputs {inputs.shape}, the network takes (n, {expected})")
        assert self.parameters is not None
        self._number = batch.number
        work = self._passes.take(len(inputs))
        values = [self._passes.converted(inputs), *work.values]
        for index, (layer, workspace) in enumerate(zip(self.layers, work.workspaces, strict=True)):
            workspace.training = training
            taken = inputs if index in self._of_integers else self.graph.inputs(index, values)
            layer.forward(workspace, taken, values[index + 1])
        return work

    def _backward(self, batch: Batch, work: Pass) -> None:
        """Compute the gradient of all parameters from the gradient of the last layer's outputs."""
        values = [self._passes.converted(batch.inputs), *work.values]
        # If several layers take a value, the first one to run writes its gradient and the others add to it.
        gradients, written = [None, *work.gradients], [True] + [False] * len(work.values)
        for index in reversed(range(len(self.layers))):
            operands = self.graph.operands[index]
            targets = [work.spares[v - 1] if v and written[v] else gradients[v] for v in operands]
            inputs = self.graph.inputs(index, values)
            layer, joins = self.layers[index], self.layers[index].joins
            layer.backward(
                work.workspaces[index],
                inputs,
                values[index + 1],
                gradients[index + 1],
                targets if joins else targets[0],
            )
            for value, target in zip(operands, targets, strict=True):
                if value and written[value]:
                    gradients[value] += target
                written[value] = True

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

        Once the largest batch has been seen, no activations or tensors are allocated.

        Parameters
        ----------
        batch
            Inputs (n, *input_shape), converted to the network's dtype; targets: class ids (n,) or floats (n, outputs).

        Returns
        -------
        loss : float
            Mean over the batch.
        gradient : array (layout.size,)
            Gradient with respect to `parameters`; the next call overwrites it.

        Raises
        ------
        UsageError
            If the shapes don't fit.
        """
        work = self._forward(batch, training=True)
        loss = self._loss(work.values[-1], batch.targets, work.gradients[-1])
        self._backward(batch, work)
        loss += self.regularisation.apply(self._weights, self._trained, self.parameters, self._gradient)
        return loss, self._gradient

    def evaluate(self, batch: Batch) -> tuple[float, int | float]:
        """Return the sum of the losses over the samples and the number of correct predictions.

        Batches are those of `loss_and_gradient`. The number is NaN for squared errors of float targets.
        """
        work = self._forward(batch, training=False)
        outputs = work.values[-1]
        loss = self._loss(outputs, batch.targets, work.gradients[-1]) * len(outputs)
        return loss, self.loss.correct(self.xp, outputs, batch.targets)

    def predict(self, inputs: Any) -> Any:
        """Return the last layer's outputs (n, *output_shape) for inputs (n, *input_shape), as a new array."""
        return self._forward(Batch(inputs, None), training=False).values[-1].copy()

    def check_data(self, input_shape: Sequence[int], classes: int | None) -> None:
        """See `CompleteModel.check_data`."""
        if tuple(input_shape) != self.input_shape:
            raise UsageError(f"model: inputs of shape {self.input_shape}, the data's are {tuple(input_shape)}")
        outputs = prod(self.output_shape)
        if classes is not None and outputs != classes:
            raise UsageError(f"model.layer: the last layer has {outputs} units, the data {classes} classes")

    def accuracy_name(self, several_labels: bool) -> str:
        """See `CompleteModel.accuracy_name`."""
        return self.loss.accuracy_name(several_labels)

    def summaries(self) -> list[LayerSummary]:
        """See `CompleteModel.summaries`."""
        inputs = [self.graph.input_shapes(index) for index in range(len(self.layers))]
        return [
            LayerSummary(name, layer.type, shape, sum(map(prod, layer.parameters(*of).values())), layer.operations(*of))
            for name, layer, shape, of in zip(self.graph.names, self.layers, self.graph.shapes[1:], inputs, strict=True)
        ]
