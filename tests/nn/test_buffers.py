"""Buffers that grow with the largest batch and are shared by smaller ones."""

import numpy as np

from mpidl.nn.buffers import Buffers


def test_smaller_batches_get_views_of_the_largest_ones_arrays():
    buffers = Buffers(np, [(3, 5), (7,)], "float64")
    small = buffers.take(11)
    large = buffers.take(13)
    assert [array.shape for array in large] == [(13, 3, 5), (13, 7)]
    assert all(array.dtype == np.float64 and array.flags.c_contiguous for array in large)
    for samples in (11, 1, 13):
        for array, whole in zip(buffers.take(samples), large, strict=True):
            assert array.shape == (samples, *whole.shape[1:])
            assert np.shares_memory(array, whole)
    assert not any(np.shares_memory(array, whole) for array, whole in zip(small, large, strict=True))


def test_the_same_arrays_come_back():
    buffers = Buffers(np, [(3,)], "float32")
    assert buffers.take(5) is buffers.take(5)
