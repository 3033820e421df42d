"""Networks: a graph of layers and a loss, also from a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isfinite, prod
from typing import Any

import numpy as np

from mpidl import schema
from mpidl.data.batch import Batch
from mpidl.data.ragged import Ragged
from mpidl.errors import UsageError, quoted
from mpidl.metrics.metric import Scoring
from mpidl.nn import kernels
from mpidl.nn.graph import Graph, LayerTables, LayerTensors, Node, Value, first_takers
from mpidl.nn.layers import LAYERS, SPARSE
from mpidl.nn.layers.layer import Layer
from mpidl.nn.layers.workspace import Workspace
from mpidl.nn.losses import LOSSES, Loss, Regularisation, SoftmaxCrossEntropy
from mpidl.nn.model import CompleteModel, Evaluation, GradientObserver, LayerSummary
from mpidl.nn.workspaces import Pass, Passes
from mpidl.parameters.layout import Layout
from mpidl.parameters.ranges import Box, Range
from mpidl.tables.lookups import Lookup, Wanted


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
        Loss of the last layer's outputs, or its name; softmax cross-entropy by default.
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
        Ranges of parameters that update rules don't change.
    input_shape, output_shape : tuple of int
        Shapes of one sample.
    tables : list of TableSpec
        The tables of its sparse embeddings.

    Raises
    ------
    UsageError
        There is no layer, two layers have the same name, a layer can't take its inputs, the dtype is unknown, or all
        parameters are in tables.
    """

    movable = True

    def __init__(
        self, layers: Sequence[Layer], input_shape: Sequence[int], *, loss: Loss | str | None = None,
        dtype: str = "float32", seed: int = 0, xp: Any = np, regularisation: Regularisation | None = None,
    ) -> None:  # fmt: skip
        if not layers:
            raise UsageError("model.layer: no layer, expected at least one")
        if not isinstance(layers, list | tuple) or not all(isinstance(each, Layer) for each in layers):
            raise UsageError(f"model.layer: expected layers, such as [mpidl.nn.Dense(10)], found {quoted(layers)}")
        if dtype not in ("float32", "float64"):
            raise UsageError(f"dtype: expected 'float32' or 'float64', found {quoted(dtype)}")
        self.layers = tuple(layers)
        self.input_shape = schema.convert(input_shape, tuple[int, ...], "Network.input_shape")
        self.loss = _loss(loss)
        self.dtype = np.dtype(dtype)
        self.seed = seed
        self.xp = xp
        self.regularisation = Regularisation() if regularisation is None else regularisation
        self.graph = graph = Graph(layers, self.input_shape)
        self.output_shape = graph.shapes[-1]
        self._tensors = tensors = LayerTensors(layers, graph, self.dtype, seed, xp)
        self.layout, self.statistics = tensors.layout, tensors.statistics
        self.embeddings = [
            f"{name}/weight" for name, each in zip(graph.names, layers, strict=True) if each.takes_integers
        ]
        self.freeze(())
        self._number = 0
        self._observer: GradientObserver | None = None
        values = [Value(self.input_shape, inputs=Box.whole(self.input_shape)), *map(Value, graph.shapes[1:])]
        operands = list(graph.operands)
        for index, layer in enumerate(layers):
            part = graph.selected(operands[index][0]) if layer.takes_integers else None
            if part is not None:
                operands[index] = (len(values),)
                values.append(Value(part.shape, inputs=part, as_is=True))
        self.takes_integers = any(value.as_is for value in values)
        self._lookups = LayerTables(layers, graph)
        self.tables = self._lookups.tables
        if self.tables and not self.layout.size:
            raise UsageError("model.layer: all parameters are in tables, expected a layer of others too, such as dense")
        nodes = [
            Node(layer, operands[i], i + 1, first)
            for i, (layer, first) in enumerate(zip(layers, first_takers(operands), strict=True))
        ]
        self._passes = Passes(xp, self.dtype.name, values, nodes, self._workspace)

    @property
    def parameters(self) -> Any:
        """The flat vector (layout.size,), allocated and initialised at its first use; it may be changed or replaced."""
        return self._tensors.parameters

    @parameters.setter
    def parameters(self, vector: Any) -> None:
        self._tensors.parameters = vector

    def freeze(self, names: Sequence[str]) -> None:
        """Exclude tensors from training, and from the norm that is clipped."""
        self._frozen = names
        left_out = [*self.statistics, *(self.layout[name].range for name in names)]
        self._trained = [part.range for part in self.layout if part.range not in left_out]

    def on(self, xp: Any) -> Network:
        """Return the same network, without parameters yet, for the arrays of another package."""
        network = Network(
            self.layers, self.input_shape, loss=self.loss, dtype=self.dtype.name, seed=self.seed, xp=xp,
            regularisation=self.regularisation,
        )  # fmt: skip
        network.freeze(self._frozen)
        return network

    def _workspace(self, index: int, buffers: dict[str, Any]) -> Workspace:
        work = self.workspace(index, *self._tensors.views(index), buffers, lambda: self._number)
        if index in self._lookups.numbers:
            work.look_up = partial(self._look_up, self._lookups.numbers[index])
        return work

    def _look_up(self, table: int, ids: Any) -> Lookup:
        return self.rows.look_up(table, self.tables[table].checked(ids))

    def wanted(self, batch: Batch) -> Sequence[Wanted]:
        return self._lookups.wanted(batch.inputs)

    def workspace(
        self, index: int, parameters: dict[str, Any], gradients: dict[str, Any], buffers: dict[str, Any],
        number: Callable[[], int],
    ) -> Workspace:  # fmt: skip
        """Return the workspace of a layer, or of a part of it; `number` returns the batch's."""
        return Workspace(
            self.xp, kernels.of(self.xp), parameters, gradients, buffers, False,
            lambda: np.random.SeedSequence([self.seed, index, number()]).generate_state(4).tolist(),
        )  # fmt: skip

    def activation_bytes(self, samples: int) -> int:
        """Return the bytes of outputs, their gradients and the layers' buffers for a batch; allocate nothing."""
        return self._passes.nbytes(samples)

    @property
    def drawn(self) -> bool:
        return not self._tensors.allocated

    def initial(self, whole: Range, layout: Layout | None = None) -> np.ndarray:
        """Return the initial values of a range of the flat vector (whole.size,), in host memory: the present ones.

        Before any are allocated, they depend on the seed and on a tensor's position in the network, not on range and
        layout. Only the blocks (`mpidl.nn.initialisers.draw`) of the range are drawn. ValueError if it isn't within the
        flat vector.
        """
        if not self.drawn:
            return np.array(super().initial(whole, layout))
        return self._tensors.initial(Range(*whole), self.layout if layout is None else layout)

    def check_inputs(self, inputs: Any) -> None:
        """Raise UsageError if a batch's inputs have another shape than the network takes."""
        if inputs.shape[1:] != self.input_shape:
            expected = ", ".join(map(str, self.input_shape))
            raise UsageError(f"a batch of inputs {inputs.shape}, the network takes (n, {expected})")
        if isinstance(inputs, Ragged) and not self._lookups.takes_bags:
            raise UsageError("a batch of bags of ids, which only sparse embeddings with a mode take")

    def values(self, batch: Batch, layers: int) -> tuple[list[Any], Any]:
        """Return the outputs (n, *shape) of the first layers, in evaluation, and the flat vector of gradients.

        All are valid until the next pass.
        """
        calls = self._forward(batch, False, layers).calls[:layers]
        return [call.outputs for call in calls], self._tensors.gradient

    def _forward(self, batch: Batch, training: bool, layers: int | None = None) -> Pass:
        """Compute the outputs of all layers, or of the first ones."""
        self.check_inputs(batch.inputs)
        assert self.parameters is not None  # They are allocated at their first use.
        self._number = batch.number
        work = self._passes.take(len(batch.inputs))
        self._passes.feed(work, batch.inputs)
        for call in work.calls[:layers]:
            call.workspace.training = training
            call.forward()
        return work

    def loss_and_gradient(self, batch: Batch) -> tuple[float, Any]:
        """Return the mean loss over the batch and its gradient (layout.size,), which the next call overwrites.

        Inputs are (n, *input_shape), and converted to the network's dtype; targets are class ids (n,) or floats
        (n, outputs); UsageError for other shapes. After the largest batch, no activations or tensors are allocated.
        """
        work, tensors = self._forward(batch, training=True), self._tensors
        gradient, last = tensors.gradient, work.calls[-1]
        loss = self.loss.mean(self.xp, last.outputs, batch.targets, last.output_gradient)
        take = self._observer if isfinite(loss) else None
        penalties = [0.0] * len(work.calls)
        for index in reversed(range(len(work.calls))):
            work.calls[index].backward()
            penalties[index] = self.regularisation.penalise(tensors.weights[index], self.parameters, gradient)
            if take is not None:
                take(gradient, tensors.starts[index])
        loss += sum(penalties)
        squared_norm = self.regularisation.squared_norm(self._trained, gradient)
        self.regularisation.clip_norm(self._trained, gradient, squared_norm)
        return loss, gradient

    def report_final(self, take: GradientObserver | None) -> None:
        """Report layer by layer; nothing on a GPU, or where the norm of the whole gradient is clipped."""
        self._observer = take if self.regularisation.clip is None and self.xp is np else None

    def evaluate(self, batch: Batch) -> Evaluation:
        """Return the evaluation of a batch as of `loss_and_gradient`."""
        last = self._forward(batch, training=False).calls[-1]
        return self.loss.evaluate(self.xp, batch, last.outputs, last.output_gradient)

    def outputs(self, batch: Batch) -> Any:
        return self._forward(batch, training=False).calls[-1].outputs

    def predict(self, inputs: Any) -> Any:
        """Return the last layer's outputs (n, *output_shape) for inputs (n, *input_shape), as a new array."""
        return self.outputs(Batch(inputs, None)).copy()

    def check_data(self, input_shape: Sequence[int] | None, classes: int | None) -> None:
        if input_shape is not None and tuple(input_shape) != self.input_shape:
            raise UsageError(f"model: inputs of shape {self.input_shape}, the data's are {tuple(input_shape)}")
        outputs = prod(self.output_shape)
        if classes is not None and outputs != classes:
            raise UsageError(f"model.layer: the last layer has {outputs} units, the data {classes} classes")

    def scoring(self, several_labels: bool) -> Scoring:
        return self.loss.scoring(several_labels and prod(self.output_shape) > 1)

    def summaries(self) -> list[LayerSummary]:
        inputs = [self.graph.input_shapes(index) for index in range(len(self.layers))]
        return [
            LayerSummary(name, layer.type, shape, sum(map(prod, layer.parameters(*of).values())), layer.operations(*of))
            for name, layer, shape, of in zip(self.graph.names, self.layers, self.graph.shapes[1:], inputs, strict=True)
        ]


def _loss(given: Any) -> Loss:
    if isinstance(given, str):
        return schema.choose(LOSSES, "Network.loss", given)()
    if given is not None and not isinstance(given, Loss):
        raise UsageError(f"Network.loss: found {quoted(given)}, expected a mpidl.nn.Loss, or {', '.join(LOSSES)}")
    return SoftmaxCrossEntropy() if given is None else given


def from_config(
    layer_sections: Sequence[Mapping[str, Any]], loss: str, input_shape: Sequence[int], seed: int,
    dtype: str = "float32", xp: Any = np, label_smoothing: float = 0.0, regularisation: Regularisation | None = None,
) -> Network:  # fmt: skip
    """Build the network that ``[[model.layer]]`` and ``model.loss`` describe, without allocating parameters.

    Parameters
    ----------
    layer_sections
        The sections in order, such as ``{"type": "dense", "units": 1024, "activation": "relu"}``.
    loss
        A name in `LOSSES`.
    input_shape, seed, dtype, xp, regularisation
        As for `Network`.
    label_smoothing
        Smoothing of the targets of softmax cross-entropy, in [0, 1).

    Raises
    ------
    UsageError
        A key is unknown, missing or of the wrong type, or the parts don't fit together.
    """
    layers = [layer_from_section(section, f"model.layer[{i}]") for i, section in enumerate(layer_sections)]
    chosen = schema.choose(LOSSES, "model.loss", loss)
    function = SoftmaxCrossEntropy(label_smoothing) if chosen is SoftmaxCrossEntropy else chosen()
    return Network(
        layers, input_shape, loss=function, dtype=dtype, seed=seed, xp=xp, regularisation=regularisation
    )  # fmt: skip


def layer_from_section(section: Mapping[str, Any], where: str) -> Layer:
    """Build a layer from its section, which errors call `where`; UsageError if a key is unknown, missing or wrong."""
    schema.check_table(where, section)
    if "type" not in section:
        raise UsageError(f"{where}.type: missing; known: {', '.join(sorted(LAYERS))}")
    kind = section["type"]
    layer, known = schema.choose(LAYERS, f"{where}.type", kind), LAYERS
    own = ["type"]
    if kind in SPARSE:
        own.append("sparse")
        known = LAYERS | {f"{kind} without sparse = true": layer, f"{kind} with sparse = true": SPARSE[kind]}
        del known[kind]
        if schema.convert(section.get("sparse", False), bool, f"{where}.sparse"):
            layer = SPARSE[kind]
    schema.check_keys(where, section, [*own, *schema.keys(layer)], known)
    return schema.build(layer, where, {key: value for key, value in section.items() if key not in own})
