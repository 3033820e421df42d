"""A network that is cut computes and trains as the uncut one does, and holds every element once."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from job_networks import NETWORKS

import threads
from hand_plans import batch_for, check_training, trained
from mpidl.errors import UsageError
from mpidl.nn import (
    AveragePool2d,
    BatchNormalisation,
    Conv2d,
    Dense,
    Dropout,
    LocalContrastNormalisation,
    LocallyConnected2d,
    MaxPool2d,
    Network,
)
from mpidl.parameters import Range
from mpidl.partition.network import CutNetwork
from mpidl.partition.planner import cut_layer, make_plan


@pytest.mark.parametrize("name", NETWORKS)
def test_each_element_is_held_once_and_by_one_who_takes_it(name):
    layers, shape = NETWORKS[name]
    for partitions in range(2, 9):
        plan = make_plan(layers, shape, partitions, batch=32)
        # The layout itself refuses tensors whose elements aren't in one piece each.
        assert plan.layout.shapes == dict(tensors_of(layers, shape))
        assert [own.start for own in plan.slices] == [0, *itertools.accumulate(plan.parameters)][:-1]
        assert sum(plan.parameters) == plan.layout.size == sum(np.prod(each) for each in plan.layout.shapes.values())
        taken = [{f"{step.name}/{key}": box for step in plan.steps for key, box in step.tensors[rank].items()}
                 for rank in range(partitions)]  # fmt: skip
        for part in plan.layout:
            (rank,) = (rank for rank, own in enumerate(plan.slices) if part.start in range(*own))
            assert part.stop <= plan.slices[rank].stop
            assert part.box.intersect(taken[rank][part.name]) == part.box


def tensors_of(layers, shape):
    return Network(layers, shape).layout.shapes


def test_one_rank_has_the_whole_network():
    layers, shape = NETWORKS["fashion_cnn"]
    plan = make_plan(layers, shape, 1, batch=32)
    assert plan.layout == Network(layers, shape).layout
    assert plan.slices == (Range(0, plan.layout.size),)
    assert plan.traffic(32) == []


IMAGES = ("fashion_cnn", "cifar10_cnn")
#: Network, cut, partitions and stages.
CASES = [
    *((name, "", partitions, 1) for name in ("digits", *IMAGES) for partitions in (2, 3, 6)),
    *((name, "rows", partitions, 1) for name in IMAGES for partitions in (2, 4)),
    *((name, "tiles", 4, 1) for name in IMAGES),
    *((name, "channels", 3, 1) for name in IMAGES),
    ("digits", "inputs", 4, 1),
    ("digits", "units", 3, 3),
    ("fashion_cnn", "", 4, 2),
    ("cifar10_cnn", "", 6, 3),
]


def chosen(layer, cut):
    """Return a layer that is cut as asked if it can be, without random numbers."""
    if isinstance(layer, Dropout):
        return Dropout(0.0)
    # The one in jobs/ gives a single pixel.
    single = isinstance(layer, AveragePool2d) and cut in ("rows", "tiles")
    return replace(layer, cut=cut if cut in layer.cuts and not single else "")


@st.composite
def stacks(draw):
    """Draw small networks on images, each layer with a cut, and a number of ranks."""
    kinds = {
        "conv": lambda: Conv2d(
            draw(st.sampled_from([4, 6])), draw(st.integers(1, 3)), draw(st.sampled_from(["identity", "tanh", "gelu"])),
            stride=draw(st.integers(1, 2)), padding="valid", groups=draw(st.sampled_from([1, 2])),
        ),
        "local": lambda: LocallyConnected2d(draw(st.sampled_from([2, 4])), 3, "tanh", padding=[[1, 2], [0, 1]]),
        "pool": lambda: draw(st.sampled_from([MaxPool2d, AveragePool2d]))(2, draw(st.integers(1, 2)), 1),
        "contrast": lambda: LocalContrastNormalisation(draw(st.sampled_from([3, 5]))),
        "batch": lambda: BatchNormalisation("tanh"),
    }  # fmt: skip
    layers = [kinds[draw(st.sampled_from(sorted(kinds)))]() for _ in range(draw(st.integers(1, 4)))]
    layers += [Dense(7, "tanh"), Dense(5)]
    return [replace(layer, cut=draw(st.sampled_from(["", *layer.cuts, "samples"]))) for layer in layers]


def possible(layers, index, shape, partitions):
    """Tell whether a layer's cut can be made."""
    shapes = Network(layers, shape).graph.input_shapes(index)
    try:
        cut_layer(layers[index], "it", layers[index].cut or "samples", Range(0, partitions), partitions, shapes)
    except UsageError:
        return False
    return True


def run(layers, cut_layers, shape, partitions, stages, samples):
    plan = make_plan(cut_layers, shape, partitions, batch=max(samples), stages=stages)
    net = Network(layers, shape, dtype="float64", seed=3)
    batches = [batch_for(net, n, seed) for seed, n in enumerate(samples)]

    def rank(group):
        own = Network(cut_layers, shape, dtype="float64", seed=3)
        return trained(CutNetwork(own, plan, group.rank), group, batches, rate=0.01)

    check_training(net, plan, threads.run(partitions, rank), batches, rate=0.01)
    return plan


@pytest.mark.parametrize(
    ("name", "cut", "partitions", "stages"),
    [*CASES, *(("digits", "", partitions, 1) for partitions in (1, 4)), *((name, "samples", 3, 1) for name in IMAGES)],
)
def test_networks_of_jobs(name, cut, partitions, stages):
    layers, shape = NETWORKS[name]
    layers = [replace(chosen(layer, ""), cut="") for layer in layers]
    cut_layers = [chosen(layer, cut) if cut != "samples" else replace(layer, cut=cut) for layer in layers]
    plan = run(layers, cut_layers, shape, partitions, stages, [5, 2, 1, 5])
    assert not cut or stages == partitions or cut in [step.cut for step in plan.steps]


@settings(max_examples=15)
@given(stacks(), st.sampled_from([2, 3, 4, 6]), st.integers(1, 7))
def test_any_network_cut_in_any_way(layers, partitions, samples):
    shape = (13, 11, 4)
    try:
        Network(layers, shape, dtype="float64")
    except UsageError:  # a window larger than what is left of the image
        reject()
    cut = [each if possible(layers, i, shape, partitions) else replace(each, cut="") for i, each in enumerate(layers)]
    run(layers, cut, shape, partitions, 1, [samples, 3, samples])
