"""The protocol of a user's own model."""

import doctest

import numpy as np

import mpidl.nn.model
from mpidl.nn import Dense, Network, layout_of
from mpidl.parameters import Layout


class Bare:
    def __init__(self):
        self.parameters = np.zeros(17)


def test_the_documented_example_runs():
    result = doctest.testmod(mpidl.nn.model)
    assert result.attempted >= 4
    assert result.failed == 0


def test_layout_of_a_model_without_one_is_a_single_tensor():
    assert layout_of(Bare()) == Layout([("parameters", (17,))])


def test_layout_of_a_network_is_its_own_and_allocates_no_parameters():
    network = Network([Dense(3)], (5,))
    assert layout_of(network) is network.layout
    assert "parameters" not in vars(network)
