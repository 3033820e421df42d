"""What the tests of wire formats share: values, and their way through a format."""

import numpy as np
from hypothesis import strategies as st

#: Number of elements in a chunk of float32.
CHUNK = 131072
SIZES = st.integers(1, 5000)
DTYPES = st.sampled_from(["float32", "float64"])


def travel(wire, feedback, values):
    data = np.full(wire.size(values.size, values.dtype), 0xA5, np.uint8)
    given = values.copy()
    feedback.encode_chunks(0, values, values.size, data)
    assert np.array_equal(bits(values), bits(given))
    decoded = np.full_like(values, np.nan)
    wire.decode(data, decoded)
    return decoded


def draw(size, dtype, seed, scale=1.0):
    return (scale * np.random.default_rng(seed).normal(size=size)).astype(dtype)


def bits(values):
    return values.view(f"uint{8 * values.itemsize}")


def values_type(dtype):
    return np.dtype(dtype).type
