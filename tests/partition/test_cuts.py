"""Each layer, cut in each way, computes what the uncut layer does."""

import numpy as np
import pytest
from interpreter import Interpreter

from mpidl.errors import UsageError
from mpidl.nn import (
    ACTIVATIONS,
    LAYERS,
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
)
from mpidl.parameters import Range
from mpidl.partition.planner import cut_layer

IMAGE, ROW = ("rows", "tiles", "channels"), ("units",)
WINDOWS = ("rows", "tiles", "channels")
#: Layers, the shapes of their operands, and the cuts that must be possible over 6 ranks.
CASES = [
    (Dense(7), [(9, 2)], ("units", "inputs")),
    (Dense(11, "tanh"), [(13,)], ("units", "inputs")),
    (Dense(6, "gelu", bias=False), [(6, 3, 2)], ("units", "inputs")),
    (Dense(7, "softmax"), [(9,)], ()),
    *((Activation(name), [(7, 6, 9)], IMAGE) for name in ACTIVATIONS if name != "softmax"),
    (Activation("softmax"), [(7, 6, 9)], ("rows", "tiles")),
    (Activation("relu"), [(7,)], ROW),
    (Activation("relu"), [(7, 8)], ("rows", "tiles", "units")),
    (Conv2d(7, 3), [(9, 8, 2)], WINDOWS),
    (Conv2d(7, 3, "tanh"), [(10, 8)], WINDOWS),
    (Conv2d(6, [3, 2], "gelu", stride=[2, 1], padding=[1, 1]), [(14, 7, 3)], WINDOWS),
    (Conv2d(6, 5, stride=3, padding=[[4, 1], [0, 3]]), [(20, 19, 2)], WINDOWS),
    (Conv2d(6, 2, stride=3), [(20, 21, 1)], WINDOWS),
    (Conv2d(8, 3, "relu", padding="same"), [(9, 7, 9)], WINDOWS),
    (Conv2d(9, 3, "gelu", padding=[[2, 0], [1, 2]]), [(11, 9, 8)], WINDOWS),
    (Conv2d(8, 5, padding=[[4, 1], [2, 4]]), [(10, 9, 8)], WINDOWS),
    (Conv2d(6, 3, groups=3, padding="same"), [(7, 6, 3)], WINDOWS),
    (Conv2d(12, 3, "tanh", groups=2), [(9, 8, 4)], WINDOWS),
    (Conv2d(16, 3, groups=8, padding=1), [(6, 7, 8)], WINDOWS),
    (Conv2d(14, 1, "softmax", groups=7), [(6, 7, 7)], ("rows", "tiles")),
    (LocallyConnected2d(7, 3), [(9, 8, 2)], WINDOWS),
    (LocallyConnected2d(6, [2, 3], "gelu", stride=[1, 2], padding=1), [(6, 12)], WINDOWS),
    (LocallyConnected2d(6, 5, "relu", stride=2, padding=[[2, 1], [0, 4]]), [(15, 13, 1)], WINDOWS),
    *(
        case
        for layer in (MaxPool2d, AveragePool2d, L2Pool2d)
        for case in (
            (layer(), [(13, 15, 7)], WINDOWS),
            (layer(3, 2), [(14, 8)], ("rows", "tiles")),
            (layer([3, 2], [2, 1], [1, 0]), [(12, 5, 9)], WINDOWS),
            (layer(5, 1, padding="same"), [(6, 7, 6)], WINDOWS),
            (layer(2, 3, padding=1), [(17, 19, 6)], WINDOWS),
            (layer(4, [3, 5], padding=[[3, 0], [1, 2]]), [(18, 22, 6)], WINDOWS),
        )
    ),
    (LocalContrastNormalisation(), [(13, 11, 3)], ("rows", "tiles")),
    (LocalContrastNormalisation(3), [(7, 6)], ("rows", "tiles")),
    (LocalContrastNormalisation(5, threshold=1.1), [(16, 7, 2)], ("rows", "tiles")),
    (BatchNormalisation(), [(7, 6, 9)], IMAGE),
    (BatchNormalisation("relu"), [(7,)], ROW),
    (BatchNormalisation("gelu", momentum=0.5), [(6, 7)], ("rows", "units")),
    (BatchNormalisation("softmax"), [(6, 7, 2)], ("rows", "tiles")),
    (LayerNormalisation(), [(7,)], ()),
    (LayerNormalisation(epsilon=0.1), [(7, 6, 4)], ("rows", "tiles")),
    (Dropout(0.4), [(7, 6, 9)], IMAGE),
    (Embedding(11, 7), [(5,)], ("rows", "units")),
    (Embedding(9, 6), [(3, 4)], ("rows", "units")),
    (Columns(2, 7), [(6, 7, 11)], IMAGE),
    (Columns(1, 6, "log1p"), [(9,)], ROW),
    (Flatten(), [(7, 2, 5)], ("rows",)),
    (Add("tanh"), [(7, 6, 9)] * 3, IMAGE),
    (Add("gelu"), [(7,)] * 2, ROW),
    (Concatenate(), [(7, 6, 1), (7, 6, 4), (7, 6, 2)], IMAGE),
    (Concatenate(), [(3,), (5,)], ROW),
    (Interaction(), [(4, 3), (3,)], ()),
]
SAMPLES = 5


def name_of(case):
    layer, (shape, *_), _ = case
    return f"{layer.type}-{CASES.index(case)}-{shape}".replace(" ", "")


def values_of(layer, shapes, random):
    """Return operands and parameters."""
    operands = [random.normal(size=(SAMPLES, *shape)) for shape in shapes]
    if isinstance(layer, Embedding):
        operands = [random.integers(0, layer.vocabulary, each.shape).astype(float) for each in operands]
    tensors = {
        f"it/{name}": 0.5 + random.random(shape) - (name not in ("variance", "scale"))
        for name, shape in layer.parameters(*shapes).items()
    }
    return operands, tensors


def computed(layer, shapes, how, parts, training):
    """Return outputs and gradients, of operands and of tensors, of a layer cut over some ranks among others."""
    random = np.random.default_rng(3)
    operands, tensors = values_of(layer, shapes, random)
    ranks = Range(1, 1 + parts) if parts > 1 else Range(0, 1)
    steps = cut_layer(layer, "it", how, ranks, ranks.stop + 1, shapes)
    run = Interpreter(steps, operands, tensors, training)
    if not training:
        return [run.values[-1]]
    gradients, of_tensors = run.backward(random.normal(size=run.values[-1].shape))
    return [run.values[-1], *gradients[: len(shapes)], *of_tensors.values()]


def same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10 * max(1, np.abs(other).max()))


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_cut_layer_computes_what_the_uncut_one_does(case):
    layer, shapes, cuts = case
    training = not isinstance(layer, Dropout)
    expected = computed(layer, shapes, "samples", 1, training)
    for how in (*cuts, "samples"):
        for parts in (2 + CASES.index(case) % 3, 6):
            same(computed(layer, shapes, how, parts, training), expected)
    for how in set(layer.cuts) - set(cuts):
        with pytest.raises(UsageError):
            cut_layer(layer, "it", how, Range(0, 6), 6, shapes)


def test_every_layer_has_a_case():
    assert {type(layer) for layer, _, _ in CASES} == set(LAYERS.values())


def test_statistics_of_a_group_where_a_rank_has_no_sample():
    layer, shapes = BatchNormalisation(), [(3,)]
    expected = computed(layer, shapes, "samples", 1, True)
    same(computed(layer, shapes, "samples", SAMPLES + 2, True), expected)
