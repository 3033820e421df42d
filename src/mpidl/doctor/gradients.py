"""How fast a core computes gradients, by type of layer."""

from __future__ import annotations

from itertools import pairwise
from math import inf, prod
from typing import Any

import numpy as np

from mpidl.data.batch import Batch
from mpidl.doctor.pair import seconds
from mpidl.nn import Network, from_config
from mpidl.partition.costs import Costs

Shape = tuple[int, ...]
Section = dict[str, Any]

#: Dense layers that are timed: the shape of a sample, and the layers.
DENSE: tuple[Shape, list[Section]] = ((1536,), [{"type": "dense", "units": 1536, "activation": "relu"}] * 3)
#: Other layers with products, by type: the shape of a sample, and the layer, of which a network has three.
PRODUCTS: dict[str, tuple[Shape, Section]] = {
    "conv2d": ((16, 16, 32), {"type": "conv2d", "channels": 32, "size": 3, "padding": 1, "activation": "relu"}),
    "locally_connected2d": (
        (20, 20, 16),
        {"type": "locally_connected2d", "channels": 16, "size": 5, "activation": "relu"},
    ),
}
#: Layers without products; "activation" stands for all that aren't here.
ELEMENTWISE: dict[str, tuple[Shape, Section]] = {
    "activation": ((32, 32, 16), {"type": "activation", "activation": "relu"}),
    "max_pool2d": ((32, 32, 16), {"type": "max_pool2d", "size": 3, "stride": 1}),
    "l2_pool2d": ((32, 32, 16), {"type": "l2_pool2d", "size": 3, "stride": 1}),
    "local_contrast_normalisation": ((32, 32, 16), {"type": "local_contrast_normalisation", "size": 5}),
    "batch_normalisation": ((32, 32, 16), {"type": "batch_normalisation"}),
}
#: Samples of a gradient that is timed, and of one of which the parameters take a good part of the time.
BATCH, FEW = 64, 8
#: How often each thing is timed: the fastest counts, which nobody disturbed.
ROUNDS = 10


def speeds() -> dict[str, Any]:
    """Return the speeds of a core: flops, flops_of, parameter_bandwidth, elements and elements_of of `Costs`."""
    flops, bandwidth = _dense()
    fixed = Costs(flops=inf, parameter_bandwidth=bandwidth)
    flops_of = {}
    for name, (shape, section) in PRODUCTS.items():
        layers = _network(shape, [section] * 3)
        elapsed = _elapsed(layers, BATCH)
        rest = elapsed - fixed.gradient(layers.summaries()[:-1], BATCH)
        flops_of[name] = _operations(layers) * BATCH / max(rest, elapsed / 10)
    elements_of = {}
    for name, (shape, section) in ELEMENTWISE.items():
        # The second layer's inputs need a gradient, those of the first don't.
        layers = _network(shape, [ELEMENTWISE["activation"][1], *[section] * 3])
        sizes = [prod(layer.shape) for layer in layers.summaries()[:-1]]
        elements_of[name] = sum(map(sum, pairwise(sizes))) * BATCH / _elapsed(layers, BATCH)
    return {
        "flops": flops,
        "flops_of": flops_of,
        "parameter_bandwidth": bandwidth,
        "elements": elements_of.pop("activation"),
        "elements_of": elements_of,
    }


def _dense() -> tuple[float, float]:
    """Return operations and bytes of parameters per second of dense layers: what many samples take beyond few."""
    network = _network(*DENSE)
    few, many = _elapsed(network, FEW), _elapsed(network, BATCH)
    each = max(many - few, many / 10) / (BATCH - FEW)
    nbytes = network.layout.size * network.dtype.itemsize
    return _operations(network) / each, nbytes / max(few - FEW * each, few / 100)


def _network(shape: Shape, layers: list[Section]) -> Network:
    network = from_config([*layers, {"type": "flatten"}], "mean_squared_error", shape, 0, "float32")
    network.parameters[:] = np.random.default_rng(0).normal(scale=0.01, size=network.parameters.size)
    return network


def _operations(network: Network) -> float:
    """Return the operations of a gradient of a sample."""
    return Costs(flops=1.0, elements=inf).gradient(network.summaries(), 1)


def _elapsed(network: Network, samples: int) -> float:
    """Return the seconds of a gradient."""
    inputs = np.random.default_rng(1).random((samples, *network.input_shape), np.float32)
    batch = Batch(inputs, np.zeros((samples, *network.output_shape), np.float32))
    network.loss_and_gradient(batch)
    return min(seconds(lambda: network.loss_and_gradient(batch), ROUNDS))
