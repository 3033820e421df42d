"""Networks from configuration sections, and errors in such sections."""

import pytest

from mpidl.errors import UsageError
from mpidl.nn import LAYERS, Dense, MeanSquaredError, from_config

DENSE = {"type": "dense", "units": 5}

KNOWN = ", ".join(sorted(LAYERS))


def build(sections, loss="softmax_cross_entropy"):
    return from_config(sections, loss, (4, 3), seed=7)


def test_sections_become_layers():
    sections = [
        {"type": "dense", "units": 9, "activation": "relu", "initialiser": "he_normal", "name": "first"},
        {"type": "dense", "units": 2},
    ]
    network = from_config(sections, "mean_squared_error", [4, 3], seed=7, dtype="float64")
    assert network.layers == (Dense(9, "relu", "he_normal", name="first"), Dense(2))
    assert isinstance(network.loss, MeanSquaredError)
    assert (network.input_shape, network.seed, network.dtype) == ((4, 3), 7, "float64")
    assert [part.name for part in network.layout][::2] == ["first/weight", "1-dense/weight"]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"units": 5}, "model.layer[1].type: missing; known: " + KNOWN),
        ({"type": "dens", "units": 5}, "model.layer[1].type: unknown name 'dens', did you mean 'dense'?"),
        ({"type": ["dense"]}, "model.layer[1].type: unknown name ['dense'], did you mean 'dense'?"),
        ({"type": 3}, "model.layer[1].type: unknown name 3; known: " + KNOWN),
        ({"type": "dense", "unit": 5}, "model.layer[1].unit: unknown key, did you mean 'units'?"),
        ({"type": "dense"}, "model.layer[1].units: missing, expected int >= 1"),
        (DENSE | {"units": "abc"}, "model.layer[1].units: expected int >= 1, found 'abc'"),
        (DENSE | {"units": 0}, "model.layer[1].units: expected int >= 1, found 0"),
        (DENSE | {"units": True}, "model.layer[1].units: expected int >= 1, found True"),
        (DENSE | {"units": 1.5}, "model.layer[1].units: expected int >= 1, found 1.5"),
        (DENSE | {"name": 3}, "model.layer[1].name: expected str, found 3"),
        (
            DENSE | {"activation": "rleu"},
            "model.layer[1].activation: unknown name 'rleu', did you mean 'relu'?",
        ),
        (
            DENSE | {"initialiser": "zero"},
            "model.layer[1].initialiser: unknown name 'zero', did you mean 'zeros'?",
        ),
        (DENSE | {"name": "0-dense"}, "model.layer[1].name: '0-dense' is the name of layer 0, expected a unique one"),
    ],
)
def test_wrong_section(section, message):
    with pytest.raises(UsageError) as caught:
        build([DENSE, section])
    assert str(caught.value) == message


def test_wrong_loss():
    with pytest.raises(UsageError, match=r"^model\.loss: unknown name 'mean_square', did you mean 'mean_sq.*'\?$"):
        build([DENSE], loss="mean_square")


def test_no_sections():
    with pytest.raises(UsageError, match=r"^model\.layer: no layer, expected at least one$"):
        build([])


def test_outputs_must_be_the_datas_classes():
    network = build([{"type": "dense", "units": 12}])
    shape = network.input_shape
    network.check_data(shape, 12)
    network.check_data(shape, None)
    with pytest.raises(UsageError, match=r"^model\.layer: the last layer has 12 units, the data 10 classes$"):
        network.check_data(shape, 10)
    with pytest.raises(UsageError, match=r"^model: inputs of shape \(.*\), the data's are \(3, 5, 7\)$"):
        network.check_data((3, 5, 7), 12)


def test_names_given_to_a_layer_are_checked_there_too():
    with pytest.raises(UsageError, match=r"^activation: unknown name 'rleu', did you mean 'relu'\?$"):
        Dense(3, "rleu")
