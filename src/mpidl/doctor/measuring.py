"""Measurements for predictions, and their file: ``mpidl doctor --save``."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime
from itertools import pairwise
from math import inf, prod
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from mpidl.config import measured
from mpidl.config.measured import Link, MeasuredNode
from mpidl.data.batch import Batch
from mpidl.doctor import windows
from mpidl.doctor.examination import Finding
from mpidl.doctor.windows import Pair, seconds
from mpidl.nn import Network, from_config
from mpidl.partition.costs import Costs
from mpidl.report.text import quantity
from mpidl.rules import Adagrad
from mpidl.shards.shard import CHUNK_BYTES

#: A layer's keys besides its type.
Keys = dict[str, Any]

#: Timed dense layers: the shape of a sample, and the keys of each of three.
DENSE: tuple[tuple[int, ...], Keys] = ((1536,), {"units": 1536, "activation": "relu"})
#: Other layers with products, by type: the shape of a sample, and the keys of each of three.
PRODUCTS: dict[str, tuple[tuple[int, ...], Keys]] = {
    "conv2d": ((16, 16, 32), {"channels": 32, "size": 3, "padding": 1, "activation": "relu"}),
    "locally_connected2d": ((20, 20, 16), {"channels": 16, "size": 5, "activation": "relu"}),
}
#: The shape of a sample for layers without products, and the keys of these; "activation" stands for all others.
IMAGE = (32, 32, 16)
ELEMENTWISE: dict[str, Keys] = {
    "activation": {"activation": "relu"},
    "max_pool2d": {"size": 3, "stride": 1},
    "l2_pool2d": {"size": 3, "stride": 1},
    "local_contrast_normalisation": {"size": 5},
    "batch_normalisation": {},
}
#: Samples of a timed gradient, and of one in which parameters take a large part of the time.
BATCH, FEW = 64, 8
#: Number of timings, of which the fastest is used, as the least disturbed one.
ROUNDS = 10


def speeds() -> dict[str, Any]:
    """Return the speeds of a core: flops, flops_of, parameter_bandwidth, elements and elements_of of `Costs`."""
    flops, bandwidth = _dense()
    fixed = Costs(flops=inf, parameter_bandwidth=bandwidth)
    flops_of = {}
    for name, (shape, keys) in PRODUCTS.items():
        network = _network(shape, [{"type": name, **keys}] * 3)
        elapsed = _elapsed(network, BATCH)
        rest = elapsed - fixed.gradient(network.summaries()[:-1], BATCH)
        flops_of[name] = _operations(network) * BATCH / max(rest, elapsed / 10)
    elements_of = {}
    for name, keys in ELEMENTWISE.items():
        # The second layer's inputs need a gradient, unlike those of the first.
        first = {"type": "activation", **ELEMENTWISE["activation"]}
        network = _network(IMAGE, [first, *[{"type": name, **keys}] * 3])
        sizes = [prod(layer.shape) for layer in network.summaries()[:-1]]
        elements_of[name] = sum(map(sum, pairwise(sizes))) * BATCH / _elapsed(network, BATCH)
    return {
        "flops": flops,
        "flops_of": flops_of,
        "parameter_bandwidth": bandwidth,
        "elements": elements_of.pop("activation"),
        "elements_of": elements_of,
    }


def _dense() -> tuple[float, float]:
    """Return operations and bytes of parameters per second of dense layers, from the times of many and few samples."""
    shape, keys = DENSE
    network = _network(shape, [{"type": "dense", **keys}] * 3)
    few, many = _elapsed(network, FEW), _elapsed(network, BATCH)
    each = max(many - few, many / 10) / (BATCH - FEW)
    nbytes = network.layout.size * network.dtype.itemsize
    return _operations(network) / each, nbytes / max(few - FEW * each, few / 100)


def _network(shape: tuple[int, ...], layers: list[dict[str, Any]]) -> Network:
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


def node(pair: Pair, way: str, found: dict[str, Any]) -> Finding:
    """Measure gradients, updates and copies of the first rank's node; copies in memory opened in this way."""
    if not pair.origin and pair.one_node:
        # All cores of a job compute at the same time.
        speeds()
    speed = pair.measure(speeds)
    update = pair.measure(update_bandwidth)
    memcpy = windows.LONG / windows.times(pair, way, windows.LONG)[2]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0))
    found["node"] = MeasuredNode(**_origin(pair, 1), cores=cores, memory=memory, memcpy=memcpy, update=update, **speed)
    flops = {"dense": speed["flops"], **speed["flops_of"]}
    gradients = ", ".join(f"{name} {quantity(each, 'flop/s')}" for name, each in flops.items())
    return Finding(f"gradients: {gradients}; updates {quantity(update, 'B/s')}")


def link(pair: Pair, way: str, found: dict[str, Any]) -> Finding:
    """Measure pushes, fetches and sends between the two ranks."""
    push, fetch, *_ = windows.times(pair, way, windows.LONG)
    push_latency, fetch_latency, *_ = windows.times(pair, way, 8)
    send_latency, send = windows.sends(pair)
    found["within" if pair.one_node else "between"] = Link(
        **_origin(pair, 2), push_bandwidth=windows.LONG / push, fetch_bandwidth=windows.LONG / fetch,
        send_bandwidth=send, push_latency=push_latency, fetch_latency=fetch_latency, send_latency=send_latency,
    )  # fmt: skip
    return Finding(f"send {quantity(send, 'B/s')}, {send_latency * 1e6:.1f} us; put and get as above")


def save(pair: Pair, path: Path, found: dict[str, Any]) -> Finding:
    """Write what `node` and `link` have found."""
    if pair.origin:
        measured.save(path, measured.Measured(**found))
    return Finding(f"in {path}, for `mpidl plan` and `mpidl simulate`")


def _origin(pair: Pair, ranks: int) -> dict[str, Any]:
    hosts = pair.comm.allgather(socket.gethostname())[:ranks]
    mpi = " ".join(MPI.Get_library_version().split(",")[0].split())
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"hosts": tuple(dict.fromkeys(hosts)), "mpi": mpi, "date": date}


def update_bandwidth() -> float:
    """Return the bytes of gradient per second that Adagrad applies, chunk by chunk, to a vector beyond the caches."""
    rule, chunk, chunks = Adagrad(), CHUNK_BYTES // 4, 64
    parameters, gradient = np.zeros(chunk * chunks, np.float32), np.ones(chunk, np.float32)
    state = rule.init(parameters)

    def update() -> None:
        for number in range(chunks):
            part = slice(number * chunk, (number + 1) * chunk)
            rule.update(parameters[part], tuple(vector[part] for vector in state), gradient, 1)

    update()
    return chunks * CHUNK_BYTES / min(seconds(update, ROUNDS))
