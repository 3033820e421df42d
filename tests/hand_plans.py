"""Plans made by hand: how some networks are cut, and the cut networks against the whole ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from mpidl.data.batch import Batch
from mpidl.nn import Activation, Add, Concatenate, Conv2d, Dense, Flatten, Layer, LocallyConnected2d, Network
from mpidl.nn.layers.layer import Weighted
from mpidl.nn.layers.workspace import Buffer
from mpidl.nn.losses import Regularisation
from mpidl.parameters import Box, Layout, Range, boxes, split
from mpidl.partition.network import CutNetwork
from mpidl.partition.plan import CutLayer, Plan, TensorPart


@dataclass(frozen=True)
class Product(Weighted):
    """A dense layer without a bias."""

    type = "product"

    units: int
    activation: str = "identity"
    initialiser: str = "glorot_uniform"

    def output_shape(self, input_shape):
        return (self.units,)

    def parameters(self, input_shape):
        return {"weight": (int(np.prod(input_shape)), self.units)}

    def forward(self, work, inputs, outputs):
        np.matmul(inputs.reshape(len(inputs), -1), work.parameters["weight"], out=outputs)

    def backward_inputs(self, work, inputs, outputs, output_gradient, input_gradient):
        if input_gradient is not None:
            np.matmul(output_gradient, work.parameters["weight"].T, out=input_gradient.reshape(len(inputs), -1))

    def backward_weights(self, work, inputs, output_gradient):
        np.matmul(inputs.reshape(len(inputs), -1).T, output_gradient, out=work.gradients["weight"])


@dataclass(frozen=True)
class Centred(Layer):
    """The inputs (n, units) minus their mean over the batch, which a running mean follows."""

    type = "centred"
    statistics = ("mean",)

    def output_shape(self, input_shape):
        return input_shape

    def parameters(self, input_shape):
        return {"mean": input_shape}

    def buffers(self, input_shape):
        return {"mean": Buffer(input_shape, per_sample=False, kept=True)}

    def _means(self, work, values):
        sums = np.array([*values.sum(axis=0), len(values)])
        if work.group is not None:
            work.group.sum(sums)
        return sums[:-1] / sums[-1]

    def forward(self, work, inputs, outputs):
        work.buffers["mean"][:] = self._means(work, inputs) if work.training else work.parameters["mean"]
        np.subtract(inputs, work.buffers["mean"], out=outputs)

    def backward_weights(self, work, inputs, output_gradient):
        work.gradients["mean"][:] = 0.1 * (work.parameters["mean"] - work.buffers["mean"])
        if work.group is not None and work.group.rank > 0:
            work.gradients["mean"].fill(0)

    def backward_inputs(self, work, inputs, outputs, output_gradient, input_gradient):
        means = self._means(work, output_gradient)
        if input_gradient is not None:
            np.subtract(output_gradient, means, out=input_gradient)


@dataclass(frozen=True)
class Numbered(Layer):
    """The inputs times a function of an element's index in the whole array."""

    type = "numbered"

    def output_shape(self, input_shape):
        return input_shape

    def _factors(self, work, shape):
        grid = np.indices(shape)
        strides = work.strides or [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
        index = work.first + sum(stride * each for stride, each in zip(strides, grid, strict=True))
        return 1 + np.sin(index)

    def forward(self, work, inputs, outputs):
        np.multiply(inputs, self._factors(work, inputs.shape), out=outputs)

    def backward_inputs(self, work, inputs, outputs, output_gradient, input_gradient):
        np.multiply(output_gradient, self._factors(work, inputs.shape), out=input_gradient)


def box(*ranges):
    return Box(tuple(Range(*each) for each in ranges))


class Cutter:
    """Makes a plan of a network, step by step."""

    def __init__(self, network, parts):
        self.network, self.parts = network, parts
        self.steps = []
        #: For each layer, the value that its last step gives; 0 for the network's inputs.
        self.values = {-1: 0}

    def step(self, index, layers, taken, given, tensors=None, operands=None):
        graph = self.network.graph
        operands = [self.values[value - 1] for value in graph.operands[index]] if operands is None else operands
        tensors = [{}] * self.parts if tensors is None else tensors
        step = CutLayer(
            graph.names[index], tuple(layers), tuple(operands), tuple(map(tuple, taken)), tuple(given), tuple(tensors)
        )
        self.steps.append(step)
        self.values[index] = len(self.steps)
        return self

    def shapes(self, index):
        graph = self.network.graph
        return [Box.whole(shape) for shape in graph.input_shapes(index)], Box.whole(graph.shapes[index + 1])

    def tensors(self, index):
        layer, inputs = self.network.layers[index], self.network.graph.input_shapes(index)
        return {key: Box.whole(shape) for key, shape in layer.parameters(*inputs).items()}

    def whole(self, index, rank):
        """Let one rank compute a layer."""
        inputs, outputs = self.shapes(index)

        def only(value, others=None):
            return [value if each == rank else others for each in range(self.parts)]

        taken = [only(TensorPart(each)) for each in inputs]
        return self.step(
            index, only(self.network.layers[index]), taken, only(TensorPart(outputs)), only(self.tensors(index), {})
        )

    def samples(self, index):
        """Let each rank compute a share of the samples, with all parameters."""
        inputs, outputs = self.shapes(index)
        shares = [(rank, self.parts) for rank in range(self.parts)]
        taken = [[TensorPart(each, share) for share in shares] for each in inputs]
        given = [TensorPart(outputs, share) for share in shares]
        return self.step(
            index, [self.network.layers[index]] * self.parts, taken, given, [self.tensors(index)] * self.parts
        )

    def units(self, index):
        """Let each rank compute some units of a dense layer, from all inputs."""
        (inputs,), outputs = self.shapes(index)
        layer, own = self.network.layers[index], split(outputs.size, self.parts)
        used = [each if each.size else None for each in own]
        return self.step(
            index,
            [each and replace(layer, units=each.size) for each in used],
            [[each and TensorPart(inputs) for each in used]],
            [each and TensorPart(Box((each,))) for each in used],
            [{"weight": box((0, inputs.size), each), "bias": Box((each,))} if each else {} for each in used],
        )

    def inputs(self, index):
        """Let each rank compute the products with some inputs of a dense layer, then the activation of some units."""
        (inputs,), outputs = self.shapes(index)
        layer, own = self.network.layers[index], split(inputs.ranges[0].stop, self.parts)
        row = inputs.size // inputs.shape[0]
        rows = [(each.start * row, each.stop * row) for each in own]
        first = replace(layer, activation="identity")
        layers = [first, *(Product(layer.units) for _ in range(1, self.parts))]
        biases = [{"bias": outputs}, *({} for _ in range(1, self.parts))]
        self.step(
            index,
            layers,
            [[TensorPart(Box((each, *inputs.ranges[1:]))) for each in own]],
            [TensorPart(outputs)] * self.parts,
            [{"weight": box(each, (0, layer.units))} | bias for each, bias in zip(rows, biases, strict=True)],
        )
        units = [TensorPart(Box((each,))) for each in split(layer.units, self.parts)]
        activation = Activation(layer.activation)
        return self.step(index, [activation] * self.parts, [units], units, operands=[len(self.steps)])

    def rows(self, index):
        """Let each rank compute some rows of a layer of windows without padding."""
        (inputs,), outputs = self.shapes(index)
        layer, own = self.network.layers[index], split(outputs.shape[0], self.parts)
        taken = [
            TensorPart(
                Box((Range(each.start * layer.stride, (each.stop - 1) * layer.stride + layer.size), *inputs.ranges[1:]))
            )
            for each in own
        ]
        tensors = self.tensors(index)
        if isinstance(layer, LocallyConnected2d):
            cut = [{key: Box((each, *box.ranges[1:])) for key, box in tensors.items()} for each in own]
        else:
            cut = [tensors] * self.parts
        given = [TensorPart(Box((each, *outputs.ranges[1:]))) for each in own]
        return self.step(index, [layer] * self.parts, [taken], given, cut)

    def alike(self, index):
        """Let each rank compute its part of the first axis of a layer that works element by element."""
        inputs, outputs = self.shapes(index)
        own = [TensorPart(Box((each, *outputs.ranges[1:]))) for each in split(outputs.shape[0], self.parts)]
        return self.step(index, [self.network.layers[index]] * self.parts, [own] * len(inputs), own)

    def plan(self, outputs=None):
        """Return the plan: what one rank takes, it holds; what several take, they hold in equal ranges."""
        held = [[] for _ in range(self.parts)]
        users = {}
        for step in self.steps:
            for rank, tensors in enumerate(step.tensors):
                for key, part in tensors.items():
                    users.setdefault((f"{step.name}/{key}", part), []).append(rank)
        for (name, part), ranks in users.items():
            for rank, own in zip(ranks, split(part.size, len(ranks)), strict=True):
                held[rank] += [(name, found.placed(part)) for found, _ in boxes(part.shape, *own)]
        layout = Layout(self.network.layout.shapes.items(), [piece for pieces in held for piece in pieces])
        sizes = [sum(part.size for _, part in pieces) for pieces in held]
        stops = np.cumsum([0, *sizes]).tolist()
        slices = [Range(start, stop) for start, stop in pairwise(stops)]
        if outputs is None:
            whole = Box.whole(self.network.output_shape)
            outputs = tuple(TensorPart(whole, (rank, self.parts)) for rank in range(self.parts))
        return Plan(self.parts, tuple(self.steps), outputs, layout, tuple(slices))


def network(layers, shape, **options):
    return Network(layers, shape, **{"dtype": "float64", "seed": 3} | options)


def dense_by_units(parts):
    net = network([Dense(13, "tanh"), Dense(11, "gelu"), Dense(5)], (9,))
    return net, Cutter(net, parts).units(0).units(1).units(2).plan()


def dense_by_inputs(parts):
    net = network([Dense(13, "tanh"), Dense(11, "tanh"), Dense(7)], (9,))
    return net, Cutter(net, parts).units(0).inputs(1).inputs(2).plan()


def inputs_of_the_network(parts):
    net = network([Dense(8, "relu"), Dense(6)], (7, 3))
    return net, Cutter(net, parts).inputs(0).units(1).plan()


def by_samples(parts):
    net = network([Dense(8, "tanh"), Dense(6)], (7,), regularisation=Regularisation(l2=0.1, clip=0.2))
    return net, Cutter(net, parts).samples(0).samples(1).plan()


def convolved(parts):
    layers = [Conv2d(3, 3, "tanh"), LocallyConnected2d(2, 3, "relu", stride=2), Conv2d(2, 2), Flatten(), Dense(5)]
    net = network(layers, (21, 8, 2), regularisation=Regularisation(l2=0.1, clip=0.5))
    return net, Cutter(net, parts).rows(0).rows(1).rows(2).samples(3).units(4).plan()


def joined(parts):
    layers = [
        Dense(12, "tanh", name="a"),
        Dense(12, "tanh", name="b"),
        Add("tanh", inputs=("a", "b"), name="sum"),
        Dense(6, "tanh", inputs=("a",), name="c"),
        Concatenate(inputs=("sum", "c", "b"), name="all"),
        Numbered(),
        Dense(4),
    ]
    net = network(layers, (5,))
    cutter = Cutter(net, parts).units(0).units(1).alike(2).units(3).samples(4).alike(5)
    return net, cutter.inputs(6).plan()


def in_stages(parts):
    """Return layers on one rank after another, in which the outputs are the last one's."""
    layers = [Dense(6, "tanh"), Dense(7, "tanh"), Dense(5, "gelu"), Dense(8, "tanh"), Dense(4)]
    net = network(layers, (5,), regularisation=Regularisation(clip=0.1))
    cutter, outputs = Cutter(net, parts), [None] * parts
    for index in range(5):
        cutter.whole(index, index * parts // 5)
    outputs[4 * parts // 5] = TensorPart(Box.whole((4,)))
    return net, cutter.plan(tuple(outputs))


def unlike(parts):
    """Return cuts that fit together badly: whole layers among cut ones, fewer units than ranks."""
    layers = [Dense(7, "tanh"), Dense(3, "tanh"), Centred(), Dense(4, "tanh"), Numbered(), Dense(6, "tanh"), Dense(3)]
    net = network(layers, (4,), regularisation=Regularisation(l2=0.2, clip=0.3))
    cutter = Cutter(net, parts).units(0).units(1).samples(2).whole(3, parts - 1).samples(4).units(5)
    return net, cutter.whole(6, 0).plan()


def crossed(parts):
    """Return statistics of which groups of ranks have a part each, for shares of the samples."""
    groups = 2 if parts % 2 == 0 else 1
    net = network([Dense(6, "tanh"), Centred(), Dense(3)], (4,))
    units = [Box((each,)) for each in split(6, groups)] * (parts // groups)
    own = [TensorPart(box, (rank // groups, parts // groups)) for rank, box in enumerate(units)]
    cutter = Cutter(net, parts).units(0)
    cutter.step(1, [Centred()] * parts, [own], own, [{"mean": box} for box in units])
    return net, cutter.units(2).plan()


PLANS = [
    dense_by_units,
    dense_by_inputs,
    inputs_of_the_network,
    by_samples,
    convolved,
    joined,
    in_stages,
    unlike,
    crossed,
]


def batch_for(net, samples, seed=0):
    random = np.random.default_rng([seed, samples])
    inputs = random.normal(size=(samples, *net.input_shape))
    return Batch(inputs, random.integers(0, net.output_shape[0], samples), number=seed)


def uncut(plan, vector):
    """Return what a whole vector of a plan's layout holds, in the order of the uncut network."""
    tensors = {name: np.full(shape, np.nan, vector.dtype) for name, shape in plan.layout.shapes.items()}
    for piece in plan.layout:
        tensors[piece.name][(*piece.box.slices(Box.whole(tensors[piece.name].shape)), ...)] = vector[
            piece.start : piece.stop
        ].reshape(piece.shape)
    return np.concatenate([tensor.reshape(-1) for tensor in tensors.values()])


def trained(model, group, batches, rate=0.1):
    """Return the losses of some steps of gradient descent on a rank, and what it holds in the end."""
    model.bind(group)
    fixed = np.zeros(model.slice.size, bool)
    for part in model.statistics:
        if common := part.intersect(model.slice):
            fixed[slice(*common.shift(-model.slice.start))] = True
    rates = np.where(fixed, 1.0, rate)
    losses = []
    for batch in batches:
        loss, gradient = model.loss_and_gradient(batch)
        losses.append(loss)
        model.parameters[:] -= rates * gradient
    model.unbind()
    return losses, model.parameters.copy()


def trained_whole(net, batches, rate=0.1):
    """Return the same of the uncut network."""
    rates = np.full(net.layout.size, rate)
    for part in net.statistics:
        rates[slice(*part)] = 1
    losses = []
    for batch in batches:
        loss, gradient = net.loss_and_gradient(batch)
        losses.append(loss)
        net.parameters[:] -= rates * gradient
    return losses, net.parameters.copy()


def cut(net, plan, rank):
    """Return a rank's part of a network."""
    whole = Network(net.layers, net.input_shape, dtype="float64", seed=3, regularisation=net.regularisation)
    return CutNetwork(whole, plan, rank)


def check_training(net, plan, results, batches, rate=0.1):
    """Compare what `trained` returns on each rank with the uncut network."""
    losses, parameters = trained_whole(net, batches, rate)
    for own, _ in results:
        assert own == results[0][0]
    np.testing.assert_allclose(results[0][0], losses, rtol=1e-10)
    found = uncut(plan, np.concatenate([each for _, each in results]))
    np.testing.assert_allclose(found, parameters, rtol=0, atol=1e-10)
