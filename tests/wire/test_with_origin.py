"""A vector that travels with the parameters at which it was computed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.wire import parse
from mpidl.wire.wire import WithOrigin


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("wire", ["fp32", "bf16", "topk:0.5"])
@given(size=st.integers(1, 37), seed=st.integers(0, 2**32))
def test_both_rows_arrive(wire, dtype, size, seed):
    encoding = WithOrigin(parse(wire))
    sent = np.random.default_rng(seed).standard_normal((2, size)).astype(dtype)
    data, arrived, residual = np.zeros(encoding.size(size, np.dtype(dtype)), np.uint8), np.zeros_like(sent), sent[0] * 0
    encoding.encode(sent, residual, data)
    encoding.decode(data, arrived)
    assert np.array_equal(arrived[1], sent[1])
    if wire == "fp32":
        assert np.array_equal(arrived[0], sent[0])
    else:
        np.testing.assert_allclose(arrived[0] + residual, sent[0], rtol=1e-6)
