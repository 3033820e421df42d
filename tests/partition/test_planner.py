"""Which cuts the planner finds, and what it says of those that can't be made."""

import itertools

import pytest
from job_networks import NETWORKS

from mpidl.errors import UsageError
from mpidl.nn import Conv2d, Dense, MaxPool2d
from mpidl.partition.costs import Basis, Costs, compute_seconds, movement_seconds, plan_seconds
from mpidl.partition.planner import make_plan


def hows(plan):
    return [step.cut for step in plan.steps]


def test_the_fastest_cut_goes_by_what_moving_takes():
    """Wide dense layers on few samples are cut by units, convolutions on many by samples."""
    assert hows(make_plan([Dense(4096, "relu"), Dense(4096, "relu")], (1024,), 4, batch=16)) == ["units"] * 2
    small = [Conv2d(8, 3, "relu", padding="same"), Conv2d(8, 3, "relu", padding="same")]
    assert hows(make_plan(small, (64, 64, 3), 4, batch=256)) == ["samples"] * 2


def test_no_cut_of_a_chain_is_faster_than_the_one_found():
    costs, shape = Costs(bandwidth=3e8), (12, 12, 4)

    def layers(cuts):
        return [Conv2d(8, 3, padding="same", cut=cuts[0]), MaxPool2d(2, cut=cuts[1]), Dense(40, cut=cuts[2])]

    def seconds(cuts):
        return plan_seconds(make_plan(layers(cuts), shape, 3, batch=32, costs=costs), Basis(32, costs, 4))

    every = itertools.product(*([*layer.cuts, "samples"] for layer in layers(("", "", ""))))
    assert seconds(("", "", "")) == pytest.approx(min(map(seconds, every)))


def test_branches_that_meet_agree():
    layers, shape = NETWORKS["cifar10_cnn"]
    plan = make_plan(layers, shape, 4, batch=64)
    join = next(step for step in plan.steps if "add" in step.name)
    for operand, taken in zip(join.operands, join.taken, strict=True):
        assert plan.steps[operand - 1].given == taken


def test_stages_have_ranks_of_their_own_and_equal_work():
    layers = [Dense(64, "relu") for _ in range(6)]
    plan = make_plan(layers, (64,), 4, batch=8, stages=2)
    used = [[rank for rank, layer in enumerate(step.layers) if layer is not None] for step in plan.steps]
    assert used == [[0, 1]] * 3 + [[2, 3]] * 3
    assert plan.stages == 2
    assert [part and part.share for part in plan.outputs] == [None, None, (0, 2), (1, 2)]
    assert max(plan.parameters) - min(plan.parameters) <= 64


def test_less_memory_makes_another_plan():
    layers = [Dense(512, "relu"), Dense(512, "relu")]
    by_samples = make_plan(layers, (512,), 4, batch=8192)
    assert hows(by_samples) == ["samples"] * 2
    # All ranks know the network's inputs: cut by units, little moves, but each rank takes all samples.
    wide, fast = [Dense(128, "relu")], {"bandwidth": 1e9, "latency": 0.0}
    unlimited = make_plan(wide, (512,), 4, batch=1024, costs=Costs(**fast))
    limit = 2 * max(unlimited.memory(1024))
    within = make_plan(wide, (512,), 4, batch=1024, costs=Costs(**fast, memory=limit))
    assert (hows(unlimited), hows(within)) == (["units"], ["samples"])
    assert 4 * max(within.memory(1024)) <= limit
    with pytest.raises(
        UsageError, match=r"topology.partitions: 4 ranks need .* GB each up to layer '0-dense', expected at"
    ):
        make_plan(layers, (512,), 4, batch=64, costs=Costs(memory=1e5))


@pytest.mark.parametrize(
    ("layer", "shape", "partitions", "text"),
    [
        (
            Dense(3, cut="units"), (9,), 4,
            "model.layer[0].cut: '0-dense' can't be cut by units: 3 units, expected at least one for each of 4 ranks; "
            "over 4 ranks it can by inputs or samples",
        ),
        (
            Conv2d(8, 3, cut="rows", name="stem"), (5, 9, 2), 6,
            "model.layer[0].cut: 'stem' can't be cut by rows: 3 rows, expected at least one for each of 6 ranks; "
            "over 6 ranks it can by tiles or channels or samples",
        ),
        (
            MaxPool2d(cut="tiles"), (6, 8, 2), 11,
            "model.layer[0].cut: '0-max_pool2d' can't be cut by tiles: 3 x 4 pixels can't be divided into 11 tiles, "
            "one for each rank; over 11 ranks it can by samples",
        ),
        (
            MaxPool2d(cut="channels"), (6, 8), 2,
            "model.layer[0].cut: '0-max_pool2d' can't be cut by channels: outputs of shape (3, 4) have no channels; "
            "over 2 ranks it can by rows or tiles or samples",
        ),
        (
            Dense(8, "softmax", cut="units"), (9,), 2,
            "model.layer[0].cut: '0-dense' can't be cut by units: an output depends on all 8 units; "
            "over 2 ranks it can by samples",
        ),
        (
            Conv2d(6, 3, groups=2, cut="channels"), (6, 8, 2), 8,
            "model.layer[0].cut: '0-conv2d' can't be cut by channels: 3 channels of a group, expected at least one for "
            "each of 4 ranks; over 8 ranks it can by tiles or samples",
        ),
    ],
)  # fmt: skip
def test_a_cut_that_cannot_be_made_is_one_line(layer, shape, partitions, text):
    with pytest.raises(UsageError) as caught:
        make_plan([layer], shape, partitions, batch=8)
    assert str(caught.value) == text


def test_movement_between_nodes_has_its_own_price_and_shares_cards():
    """Two layers by units on 4 ranks, 2 a node: each rank takes 4 elements of a sample from each of the others."""
    layers = [Dense(16, cut="units"), Dense(16, cut="units")]
    costs = Costs(bandwidth=100.0, latency=1.0, between_bandwidth=10.0, between_latency=5.0)
    plan = make_plan(layers, (16,), 4, batch=8, costs=costs)
    given, taken = plan.steps[0].given, plan.steps[1].taken[0]
    nbytes = 8 * 4 * 4
    within = (1 + nbytes / 100) + (2 * 5 + 2 * 2 * nbytes / 10)
    assert movement_seconds(given, taken, Basis(8, costs, 4, 2)) == pytest.approx(2 * within)
    assert movement_seconds(given, taken, Basis(8, costs, 4)) == pytest.approx(2 * (3 + 3 * nbytes / 100))
    assert movement_seconds(given, taken, Basis(8, costs, 4, 1)) == pytest.approx(2 * (3 * 5 + 3 * nbytes / 10))


def test_what_computing_takes_counts_the_first_layers_inputs_out():
    layers = [Dense(16, cut="units"), Dense(8, cut="units")]
    costs = Costs(flops=10.0, parameter_bandwidth=40.0)
    plan = make_plan(layers, (4,), 2, batch=3, costs=costs)
    first, second = (compute_seconds(step, Basis(3, costs, 4), not any(step.operands)) for step in plan.steps)
    assert first == pytest.approx([2 * 2 * 4 * 8 * 3 / 10 + 4 * (4 * 8 + 8) / 40] * 2)
    assert second == pytest.approx([3 * 2 * 16 * 4 * 3 / 10 + 4 * (16 * 4 + 4) / 40] * 2)


def test_stages_compute_micro_batches_at_the_same_time():
    layers = [Dense(16), Dense(16), Dense(8)]
    costs = Costs(flops=10.0, bandwidth=100.0, latency=1.0)
    plan = make_plan(layers, (16,), 2, batch=12, stages=2, costs=costs)
    assert [step.given[0] is not None for step in plan.steps] == [True, False, False]
    operations = [2 * 2 * 16 * 16 * 3 / 10, (3 * 2 * 16 * 16 + 3 * 2 * 16 * 8) * 3 / 10]
    # The second stage waits for 16 values of three samples, and sends their gradient back.
    first, second = operations[0], operations[1] + 2 * (1 + 3 * 16 * 4 / 100)
    assert plan_seconds(plan, Basis(12, costs, 4), micro_batches=4) == pytest.approx(first + second + 3 * second)
    assert plan_seconds(plan, Basis(3, costs, 4)) == pytest.approx(first + second)


def test_ranks_that_stages_do_not_divide():
    layers = [Dense(8), Dense(8)]
    for partitions, stages, text in (
        (4, 3, "3, expected a divisor of the 4"),
        (3, 3, "3, expected at most one for each of"),
    ):
        with pytest.raises(UsageError, match=f"topology.stages: {text}"):
            make_plan(layers, (4,), partitions, batch=8, stages=stages)


def test_an_unknown_cut_is_refused():
    with pytest.raises(UsageError, match="cut: dense has no cut 'rows'; known: inputs, samples, units"):
        Dense(8, cut="rows")
