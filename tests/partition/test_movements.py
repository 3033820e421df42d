"""What moves between the ranks of a cut network is what must."""

import pytest

from mpidl.nn import (
    AveragePool2d,
    BatchNormalisation,
    Concatenate,
    Conv2d,
    Dense,
    LocalContrastNormalisation,
    LocallyConnected2d,
    MaxPool2d,
)
from mpidl.partition.costs import Costs
from mpidl.partition.planner import make_plan


def between_layers(plan, samples=1):
    """Return the elements that move forward, without the outputs' way to the loss."""
    return [(move.name, move.what, move.elements.sum()) for move in plan.traffic(samples) if move.name != "outputs"]


def test_locally_connected_layers_move_halos_only():
    layers = [LocallyConnected2d(3, 5, padding="same", cut="rows", name=name) for name in ("first", "second")]
    for partitions, height in ((2, 10), (3, 12), (4, 12), (6, 18)):
        plan = make_plan(layers, (height, 7, 2), partitions, batch=4)
        # On both sides of each border, two rows of seven pixels of three maps.
        assert between_layers(plan, 4) == [("second", "values", 4 * (partitions - 1) * 2 * 2 * 7 * 3)]
        assert max(plan.parameters) == min(plan.parameters)


def test_local_contrast_takes_twice_its_radius():
    layers = [Conv2d(2, 1, cut="rows"), LocalContrastNormalisation(5, cut="rows", name="contrast")]
    plan = make_plan(layers, (24, 5, 3), 3, batch=1)
    assert ("contrast", "values", 2 * 2 * 4 * 5 * 2) in between_layers(plan)


def test_pooling_with_a_stride_of_its_size_moves_nothing():
    layers = [LocallyConnected2d(3, 3, padding="same", cut="rows"), MaxPool2d(2, cut="rows", name="pool")]
    assert between_layers(make_plan(layers, (16, 6), 4, batch=1)) == []


@pytest.mark.parametrize("partitions", [2, 3, 4, 6])
def test_a_block_diagonal_network_moves_nothing_and_is_found(partitions):
    layers = [
        Conv2d(24, 3, "relu", padding="same", groups=12),
        Conv2d(24, 3, padding="same", groups=12),
        BatchNormalisation("relu"),
        MaxPool2d(2),
        Conv2d(48, 3, "relu", groups=12),
    ]
    # Parameters are many and pixels few, as where dividing channels pays.
    plan = make_plan(layers, (16, 16, 12), partitions, batch=256, costs=Costs(latency=1e-3))
    assert [step.cut for step in plan.steps] == ["channels"] * 5
    assert between_layers(plan, 256) == []


def test_two_halves_of_alexnet_move_at_their_crosstalk_only():
    layers = [
        Conv2d(6, 3, "relu", padding="same", cut="channels", name="first"),
        Conv2d(8, 3, "relu", padding="same", groups=2, cut="channels", name="second"),
        Conv2d(10, 3, "relu", padding="same", cut="channels", name="third"),
        Conv2d(12, 3, "relu", padding="same", groups=2, cut="channels", name="fourth"),
        Conv2d(4, 3, "relu", padding="same", groups=2, cut="channels", name="fifth"),
    ]
    plan = make_plan(layers, (7, 9, 3), 2, batch=1)
    # Each half takes all of the other's maps, and nothing else.
    assert between_layers(plan) == [("third", "values", 7 * 9 * 8)]
    assert plan.traffic(1)[0].elements.tolist() == [[0, 7 * 9 * 4], [7 * 9 * 4, 0]]
    grouped = [plan.steps[index].layers[1].groups for index in range(5)]
    assert grouped == [1, 1, 1, 1, 1]


def test_a_value_that_several_units_need_moves_once():
    layers = [Dense(12, "relu", cut="units"), Dense(60, cut="units", name="second")]
    plan = make_plan(layers, (5,), 3, batch=7)
    # Each rank lacks the eight values of the others, for seven samples, however many units take them.
    assert between_layers(plan, 7) == [("second", "values", 3 * 8 * 7)]
    outputs = plan.traffic(7)[-1]
    assert (outputs.name, outputs.what) == ("outputs", "values")
    # Shares of 3, 2 and 2 samples: who has them lacks 40 units of each.
    assert outputs.elements.sum(axis=0).tolist() == [3 * 40, 2 * 40, 2 * 40]


def test_a_value_that_two_layers_take_in_the_same_way_moves_once():
    layers = [
        Conv2d(4, 1, cut="rows", name="stem"),
        Conv2d(2, 3, padding="same", cut="rows", name="left", inputs=("stem",)),
        Conv2d(3, 3, padding="same", cut="rows", name="right", inputs=("stem",)),
        Concatenate(cut="rows", inputs=("left", "right")),
    ]
    plan = make_plan(layers, (8, 5, 2), 2, batch=1)
    assert between_layers(plan)[0] == ("left", "values", 2 * 5 * 4)
    assert [what for _, what, _ in between_layers(plan)] == ["values"] + 3 * ["parameters"]


def test_summands_go_where_their_sum_is_needed():
    layers = [Dense(12, "relu", cut="inputs", name="first"), Dense(6, cut="inputs", name="second")]
    plan = make_plan(layers, (9,), 3, batch=1)
    assert [type(step.layers[0]).__name__ for step in plan.steps] == ["Dense", "Activation", "Dense"]
    # Each rank sends the other two their four units; then all have what they need of the second layer's inputs.
    assert between_layers(plan) == [("first", "values", 3 * 2 * 4)]
    assert ["bias" in tensors for tensors in plan.steps[0].tensors] == [True, False, False]


def test_by_samples_parameters_move_and_values_do_not():
    layers = [Conv2d(4, 3, cut="samples", name="first"), AveragePool2d(2, cut="samples")]
    plan = make_plan(layers, (8, 8, 3), 4, batch=8)
    size = 3 * 3 * 3 * 4 + 4
    assert between_layers(plan, 8) == [("first", "parameters", 3 * size)]
    # Each rank sends its quarter of the tensors to three others, and the gradients of theirs back.
    assert plan.traffic(8)[0].sent == (2 * 3 * size // 4,) * 4
    assert plan.parameters == (size // 4,) * 4
    assert plan.operations(8) == (3 * 2 * layers[0].operations((8, 8, 3)),) * 4
    assert plan.operations(2) == (3 * layers[0].operations((8, 8, 3)),) * 2 + (0, 0)
