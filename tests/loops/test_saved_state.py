"""What a loop keeps is the same after it was saved."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mpidl.loops.saved import decoded, encoded
from mpidl.loops.switch import LoopError

scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary())
kinds = st.sampled_from(["<f4", ">f8", "<i8", "|b1", "<c16", "<U3", "|S2"]).map(np.dtype)
values = st.recursive(
    st.one_of(scalars, arrays.arrays(kinds, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(), inner, max_size=3),
    ),
    max_leaves=8,
)


def same(one, other):
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@given(st.dictionaries(st.text(), values, max_size=4))
def test_states_come_back(state):
    content = encoded(state)
    assert content.dtype == np.uint8
    assert same(decoded(content), state)


def test_states_of_generators_come_back():
    own, legacy, python = np.random.default_rng(3), np.random.RandomState(4), random.Random(5)
    for _ in range(7):
        own.normal(), legacy.normal(), python.gauss(0, 1)
    state = decoded(
        encoded({"own": own.bit_generator.state, "legacy": legacy.get_state(), "python": python.getstate()})
    )
    other, second, third = np.random.default_rng(), np.random.RandomState(), random.Random()
    other.bit_generator.state = state["own"]
    second.set_state(state["legacy"])
    third.setstate(state["python"])
    assert other.normal() == own.normal()
    assert second.normal() == legacy.normal()
    assert third.gauss(0, 1) == python.gauss(0, 1)


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"file": {"open": object()}}, r"replica\.state\['file'\]\['open'\]: found an object, expected numbers"),
        ({"a": [1, {2: 3}]}, r"replica\.state\['a'\]\[1\]: a key is an int, expected a text"),
        ({"a": np.array([object()])}, r"replica\.state\['a'\]: found an? "),
    ],
)
def test_what_can_not_be_saved_is_named(state, says):
    with pytest.raises(LoopError, match=says):
        encoded(state)
