"""Initial values: their distributions, and the same bits for a part of a network as in the whole, drawn alone."""

import tracemalloc
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cut_layouts import cut_layouts, in_layout
from mpidl.nn import (
    INITIALISERS,
    BatchNormalisation,
    Conv2d,
    Dense,
    Embedding,
    LocallyConnected2d,
    Network,
    initialisers,
)
from mpidl.nn.initialisers import fans
from mpidl.nn.model import CompleteModel
from mpidl.parameters import Box, Layout, Range, shards

NETWORKS = [
    ([Dense(7, initialiser="he_normal"), Dense(3)], (5,)),
    ([Conv2d(4, 3), BatchNormalisation(), Dense(3)], (6, 5, 2)),
    ([LocallyConnected2d(3, 2, initialiser="lecun_normal"), Dense(2)], (4, 5, 2)),
    ([Embedding(11, 3), Dense(2)], (4,)),
]


@given(
    network=st.sampled_from(NETWORKS),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 2**64),
    block=st.sampled_from([1, 3, 16, 1 << 16]),
    data=st.data(),
)
def test_any_part_in_any_layout_has_the_bits_of_the_whole(network, dtype, seed, block, data):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(initialisers, "BLOCK", block)
        drawn, model = (Network(*network, dtype=dtype, seed=seed) for _ in range(2))
        layout = data.draw(cut_layouts(model.layout.shapes))
        whole = in_layout(model.layout.views(model.parameters), layout)
        for part in shards(layout.size, data.draw(st.integers(1, 7))):
            for each in (drawn, model):
                found = each.initial(part, layout)
                assert found.dtype == dtype
                assert found.tobytes() == whole[slice(*part)].tobytes()


class Own(CompleteModel):
    def __init__(self, layout):
        self.layout, self.dtype, self.parameters = layout, np.dtype("float64"), np.arange(layout.size, dtype=float)


@given(st.data())
def test_the_values_of_ones_own_model_in_any_layout(data):
    model = Own(Layout([("a", (3, 5)), ("b", ()), ("c", (4,))]))
    layout = data.draw(cut_layouts(model.layout.shapes))
    expected = in_layout(model.layout.views(model.parameters), layout)
    for part in shards(layout.size, data.draw(st.integers(1, 5))):
        assert model.initial(part, layout).tolist() == expected[slice(*part)].tolist()
        assert model.initial(part).tolist() == list(range(*part))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_part_takes_the_memory_of_a_block_and_of_the_result(dtype):
    model = Network([Dense(8192)], (8192,), dtype=dtype)
    middle = 8192 * 4096 + 5000
    columns = Box((Range(0, 8192), Range(100, 164)))
    rest = [Box((Range(0, 8192), Range(0, 100))), Box((Range(0, 8192), Range(164, 8192)))]
    pieces = [("0-dense/weight", box) for box in (columns, *rest)]
    cut = Layout(model.layout.shapes.items(), [*pieces, ("0-dense/bias", Box.whole((8192,)))])
    # The second has elements of 128 blocks, which it takes 4 MiB of float64 to hold.
    for part, layout in ((Range(middle, middle + 16), None), (Range(0, 64 * 1024), cut)):
        model.initial(Range(0, 1))
        tracemalloc.start()
        try:
            found = model.initial(part, layout)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert found.size == part.size
        assert peak < found.nbytes + initialisers.BLOCK * model.dtype.itemsize + (1 << 16)


def test_only_the_blocks_are_drawn_that_a_part_touches():
    drawn = []

    def initialise(generator, values):
        drawn.append(values.size)
        values.fill(len(drawn))

    # Rows of 2 blocks; of each, the first three elements of the second.
    shape = (5, 2 * initialisers.BLOCK - 7)
    values = np.empty((2, 3), np.float32)
    box = Box((Range(1, 3), Range(initialisers.BLOCK, initialisers.BLOCK + 3)))
    initialisers.draw(shape, box, [0], initialise, values)
    assert values.tolist() == [[1] * 3, [2] * 3]
    assert drawn == [initialisers.BLOCK] * 2


def test_blocks_differ_and_are_alike_in_distribution():
    count = 3 * initialisers.BLOCK
    values = Network([Dense(count // 3, initialiser="lecun_normal")], (3,)).initial(Range(0, count))
    blocks = values.reshape(3, -1)
    correlations = np.corrcoef(blocks)[np.triu_indices(3, 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(initialisers.BLOCK)
    np.testing.assert_allclose(blocks.std(axis=1), np.sqrt(1 / 3), rtol=0.02)


INPUTS, OUTPUTS = 301, 203
VARIANCES = {"glorot": 2 / (INPUTS + OUTPUTS), "he": 2 / INPUTS, "lecun": 1 / INPUTS}


def draw(name, dtype="float64", seed=0):
    values = np.full(INPUTS * OUTPUTS, np.nan, dtype)
    INITIALISERS[name](np.random.default_rng(seed), (INPUTS, OUTPUTS), values)
    return values


@pytest.mark.parametrize("name", [name for name in INITIALISERS if name != "zeros"])
def test_distribution(name):
    source, _, distribution = name.partition("_")
    deviation = sqrt(VARIANCES[source])
    values = draw(name)
    count = values.size
    assert abs(values.mean()) < 5 * deviation / sqrt(count)
    assert values.std() == pytest.approx(deviation, rel=0.02)
    fourth = np.mean((values / deviation) ** 4)
    assert fourth == pytest.approx({"uniform": 9 / 5, "normal": 3}[distribution], rel=0.05)
    if distribution == "uniform":
        assert np.abs(values).max() <= deviation * sqrt(3)


@pytest.mark.parametrize("name", INITIALISERS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_and_seed(name, dtype):
    values = draw(name, dtype)
    assert np.isfinite(values).all()
    np.testing.assert_array_equal(values, draw(name, dtype))
    assert (name == "zeros") == np.array_equal(values, draw(name, dtype, seed=1))
    assert (name == "zeros") == (not values.any())


def test_windows_multiply_both_fans():
    assert fans((5, 7)) == (5, 7)
    assert fans((3, 2, 5, 7)) == (30, 42)
