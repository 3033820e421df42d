"""Where a cut network says that it rounds as the whole one does, it has the same bits."""

import numpy as np
import pytest

from mpidl.data.batch import Batch
from mpidl.nn import AveragePool2d, Conv2d, Dense, Flatten, LocallyConnected2d, MaxPool2d, Network
from mpidl.parameters import Range, moves
from mpidl.partition.network import CutNetwork
from mpidl.partition.plan import rounded_otherwise
from mpidl.partition.planner import make_plan
from threads import run

LOCAL = [LocallyConnected2d(3, 3, "tanh", cut="rows"), Flatten(cut="rows")]
POOLED = [LocallyConnected2d(2, 3, cut="rows"), MaxPool2d(2, cut="rows"), Flatten(cut="rows")]


def gradient(network, batch):
    return network.loss_and_gradient(batch)[1].copy()


def gradient_of_parts(network, plan, batch):
    """Return the gradient of a cut network, in the layout of the whole one."""

    def work(group):
        model = CutNetwork(network, plan, group.rank)
        model.bind(group)
        return gradient(model, batch)

    found, size = np.concatenate(run(plan.partitions, work)), plan.layout.size
    whole = np.empty_like(found)
    for move in moves(plan.layout, Range(0, size), network.layout, Range(0, size)):
        move.copy(found, whole)
    return whole


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("partitions", [2, 3, 4])
@pytest.mark.parametrize(("layers", "shape"), [(LOCAL, (13, 7, 2)), (POOLED, (19, 6, 3))])
def test_sums_that_no_cut_divides_have_the_same_bits(layers, shape, partitions, dtype):
    network = Network(layers, shape, dtype=dtype)
    plan = make_plan(network.layers, shape, partitions, batch=32)
    assert rounded_otherwise(plan) == []
    random = np.random.default_rng(0)
    for samples in (32, 53, 7, 1):
        inputs = random.normal(size=(samples, *shape)).astype(dtype)
        batch = Batch(inputs, random.integers(0, network.output_shape[0], samples))
        assert gradient_of_parts(network, plan, batch).tobytes() == gradient(network, batch).tobytes()


@pytest.mark.parametrize(
    ("layers", "named"),
    [
        ([Dense(12, cut="units"), Dense(10, cut="units")], ["0-dense", "1-dense"]),
        ([LocallyConnected2d(2, 3, cut="rows"), Dense(10, cut="inputs")], ["1-dense"]),
        ([LocallyConnected2d(2, 3, cut="rows"), LocallyConnected2d(2, 3, cut="rows"), Flatten()],
         ["1-locally_connected2d"]),
        ([Conv2d(4, 3, cut="rows"), AveragePool2d(2, cut="rows"), Flatten()], ["0-conv2d"]),
        ([Conv2d(4, 3, cut="channels"), Flatten()], ["0-conv2d"]),
        ([LocallyConnected2d(2, 3, cut="samples"), Flatten()], ["0-locally_connected2d"]),
    ],
)  # fmt: skip
def test_layers_whose_sums_are_divided_are_named(layers, named):
    plan = make_plan(layers, (14, 14, 2), 2, batch=8)
    assert rounded_otherwise(plan) == named
    assert rounded_otherwise(plan, clips=True) == [*named, "the norm that is clipped"]
