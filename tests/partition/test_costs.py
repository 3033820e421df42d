"""What computing and moving takes."""

import pytest

from mpidl.nn.model import LayerSummary
from mpidl.partition.costs import Costs

COSTS = Costs(100.0, 10.0, 0.5, 5.0, 2.0, flops_of={"conv2d": 400.0})


def test_messages_within_a_node_and_between_nodes():
    assert COSTS.move(20, messages=3) == 3 * 0.5 + 2
    assert COSTS.move(20, between=True) == 2 + 4
    assert COSTS.move(0) == 0.5


def test_a_gradient_passes_each_layer_three_times_and_the_first_twice():
    layers = [LayerSummary(str(number), "dense", (3,), 0, 50) for number in range(3)]
    assert COSTS.gradient(layers, samples=4) == pytest.approx((2 + 3 + 3) * 50 * 4 / 100)
    layers[1] = LayerSummary("1", "conv2d", (3,), 0, 50)
    assert COSTS.gradient(layers, samples=4) == pytest.approx((2 + 3 / 4 + 3) * 50 * 4 / 100)
    assert COSTS.gradient([], samples=4) == 0


def test_ranks_that_are_slower_take_as_much_longer_for_all_that_they_compute():
    costs = Costs(100.0, parameter_bandwidth=20.0, elements=50.0, flops_of={"a": 40.0}, elements_of={"b": 25.0})
    for type, operations in (("a", 7), ("other", 7), ("b", 0), ("other", 0)):
        assert costs.slower(3).layer(type, operations, 9, 5) == pytest.approx(3 * costs.layer(type, operations, 9, 5))
    assert costs.slower(3).move(9) == costs.move(9)


def test_layers_without_products_take_their_elements_and_all_take_their_parameters():
    costs = Costs(flops=100.0, parameter_bandwidth=20.0, elements=50.0, elements_of={"max_pool2d": 25.0})
    dense = LayerSummary("0", "dense", (3,), 5, 50)
    pooling, other = (LayerSummary(type, type, (2,), 0, 0) for type in ("max_pool2d", "flatten"))
    found = costs.gradient([dense, pooling, other], samples=4, itemsize=8)
    assert found == pytest.approx(2 * 50 * 4 / 100 + 5 * 8 / 20 + 4 * (3 + 2) / 25 + 4 * (2 + 2) / 50)
