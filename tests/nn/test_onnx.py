"""Networks as ONNX models: ONNX's own reference gives the same numbers."""

import numpy as np
import pytest

from layer_cases import CASES
from mpidl import UsageError
from mpidl.nn import (
    Activation,
    Add,
    BatchNormalisation,
    Concatenate,
    Conv2d,
    Dense,
    Dropout,
    Embedding,
    LocalContrastNormalisation,
    LocallyConnected2d,
    MaxPool2d,
    Network,
)
from mpidl.nn.onnx import LAYERS, to_onnx
from rows import in_turn

ALONE = [case for case in CASES if type(case[0]) in LAYERS and not case[0].joins]


def check(network, inputs, tmp_path):
    """Compare the outputs of a network with random parameters, for several numbers of samples."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    network.parameters = np.random.default_rng(5).uniform(-0.5, 0.5, network.layout.size).astype(network.dtype)
    for part in network.layout:
        if part.name.endswith("variance"):
            network.parameters[part.start : part.stop] += 1
    assert to_onnx(network, tmp_path / "model.onnx") == len(network.layout)
    onnx.checker.check_model(tmp_path / "model.onnx", full_check=True)
    model = ReferenceEvaluator(str(tmp_path / "model.onnx"))
    for samples in (len(inputs), 1):
        (found,) = model.run(None, {"inputs": inputs[:samples]})
        expected = network.predict(inputs[:samples])
        assert (found.dtype, found.shape) == (network.dtype, expected.shape)
        # Minimal filtering computes convolutions to 1e-5 in float32.
        error = np.abs(found - expected).max() / np.abs(expected).max()
        assert error < (1e-6 if network.dtype == np.float64 else 2e-5)


@pytest.mark.parametrize(("case", "dtype"), in_turn(ALONE, [("float32",), ("float64",)]))
def test_each_layer(case, dtype, tmp_path):
    layer, shape = case
    random = np.random.default_rng(3)
    ids = isinstance(layer, Embedding)
    inputs = random.integers(0, 11, (4, *shape)) if ids else random.normal(size=(4, *shape)).astype(dtype)
    check(Network([layer], shape, dtype=dtype), inputs, tmp_path)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_network_with_branches(dtype, tmp_path):
    layers = [
        Conv2d(6, 3, "relu", padding="same", name="first"),
        Conv2d(6, 3, padding="same", groups=2),
        BatchNormalisation(name="second"),
        Add("gelu", inputs=("first", "second")),
        Dropout(0.5),
        MaxPool2d(2, name="halves"),
        Conv2d(2, 1, "sigmoid", name="gates"),
        Concatenate(inputs=("halves", "gates")),
        Dense(7, "leaky_relu"),
        Activation("softmax"),
    ]
    inputs = np.random.default_rng(3).normal(size=(5, 7, 9)).astype(dtype)
    check(Network(layers, (7, 9), dtype=dtype), inputs, tmp_path)


def test_ids_for_several_layers(tmp_path):
    layers = [
        Embedding(11, 3, name="rows"),
        Dense(4, inputs=("rows",), name="of rows"),
        Dense(5, inputs=("inputs",), name="of ids"),
        Concatenate(inputs=("of rows", "of ids")),
        Activation("relu"),
        Embedding(40, 2),
    ]
    check(Network(layers, (7,)), np.random.default_rng(3).integers(0, 11, (5, 7)), tmp_path)


@pytest.mark.parametrize("layer", [LocallyConnected2d(3, 3), LocalContrastNormalisation(3)])
def test_a_layer_without_an_operator_is_one_line(layer, tmp_path):
    network = Network([layer, Dense(2)], (7, 5, 2))
    with pytest.raises(UsageError, match=f"^--to onnx: layer '0-{layer.type}': {layer.type} has no operator in ONNX$"):
        to_onnx(network, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
