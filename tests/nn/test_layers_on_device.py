"""Every layer gives the same results on a GPU as on the CPU.

On the stand-in for CuPy, whose kernels are the same sources, and on CuPy itself where there is a GPU.
"""

import sys

import numpy as np
import pytest

import fake_cupy
from layer_cases import CASES, Alone, name_of
from mpidl.data import Batch
from mpidl.nn import BatchNormalisation, Conv2d, Dense, LocallyConnected2d, Network
from mpidl.nn.kernels import cuda
from mpidl.nn.layers import conv2d, locally_connected2d
from rows import in_turn


@pytest.mark.parametrize(("case", "dtype"), in_turn(CASES, [("float32",), ("float64",)]))
def test_a_layer_computes_the_same(cupy, case, dtype):
    host, device = Alone(*case, dtype=dtype), Alone(*case, dtype=dtype, xp=cupy)
    y = host.random.normal(size=host.outputs.shape).astype(dtype)
    tolerance = {"float32": {"rtol": 1e-4, "atol": 1e-4}, "float64": {"rtol": 1e-12, "atol": 1e-12}}[dtype]
    for _ in range(2):
        np.testing.assert_allclose(device.forward().get(), host.forward(), **tolerance)
        for found, expected in zip(device.backward(cupy.asarray(y)), host.backward(y), strict=True):
            assert isinstance(found, cupy.ndarray)
            np.testing.assert_allclose(found.get(), expected, **tolerance)
    # The same in two parts.
    device.first_part(cupy.asarray(y))
    device.second_part()
    for found, expected in zip(device.input_gradients, host.input_gradients, strict=True):
        np.testing.assert_allclose(found.get(), expected, **tolerance)
    for name, expected in host.gradients.items():
        np.testing.assert_allclose(device.gradients[name].get(), expected, **tolerance)


class Twins:
    """Two ranks with the same values."""

    rank = 0

    @staticmethod
    def sum(array):
        array *= 2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_statistics_of_several_ranks(cupy, dtype):
    alone, *cut = (Alone(BatchNormalisation("tanh"), (5, 3), dtype=dtype, xp=xp) for xp in (np, np, cupy))
    y = alone.random.normal(size=alone.outputs.shape).astype(dtype)
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    for each, xp in zip(cut, (np, cupy), strict=True):
        each.work.group = Twins
        np.testing.assert_allclose(host(each.forward()), alone.forward(), tolerance, tolerance)
        for found, expected in zip(each.backward(xp.asarray(y)), alone.backward(y), strict=True):
            np.testing.assert_allclose(host(found), expected, tolerance, tolerance)
        # Of twice the values, 40 instead of 20, the variance divides by one less.
        np.testing.assert_allclose(host(each.gradients["mean"]), alone.gradients["mean"], tolerance, tolerance)
        moved, expected = (
            0.1 * host(one.parameters["variance"]) - host(one.gradients["variance"]) for one in (each, alone)
        )
        np.testing.assert_allclose(moved * 39 / 40, expected * 19 / 20, tolerance, tolerance)


def host(array):
    """Return an array of either package as one of NumPy's."""
    return array.get() if hasattr(array, "get") else array


@pytest.mark.skipif(fake_cupy.COMPILER is None, reason="no C++ compiler")
def test_the_chain_rule_of_a_normalisation_makes_no_array_of_products(monkeypatch):
    cupy = fake_cupy.fake()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    values, gradient, spread = cupy.zeros((5, 7)), cupy.zeros((5, 7)), cupy.zeros((5, 7))
    row, column = [cupy.zeros(7) for _ in range(5)], [cupy.zeros(5) for _ in range(2)]
    made = []
    keep = fake_cupy.on_device
    monkeypatch.setattr(fake_cupy, "on_device", lambda result: (made.append(np.size(result)), keep(result))[1])
    cuda.backprop_scale_shift(values, *row[:2], gradient, *row[2:4])
    cuda.backprop_rows(values, *column, row[0], gradient, *row[1:3], spread)
    assert max(made, default=0) < values.size


@pytest.mark.parametrize("case", [case for case in CASES if case[0].type == "conv2d"], ids=name_of)
def test_indices_of_64_bits_find_the_same(cupy, case, monkeypatch):
    monkeypatch.setattr("mpidl.nn.kernels.cuda.NARROW", 0)
    host, device = Alone(*case), Alone(*case, xp=cupy)
    y = host.random.normal(size=host.outputs.shape)
    for found, expected in zip(device.backward(cupy.asarray(y)), host.backward(y), strict=True):
        np.testing.assert_allclose(found.get(), expected, rtol=1e-12, atol=1e-12)


def test_a_gpu_works_on_more_patches_at_a_time(cupy, monkeypatch):
    monkeypatch.setattr(conv2d, "PATCHES", 1)
    gathered, gather = [], cuda.gather_patches
    monkeypatch.setattr(
        cuda, "gather_patches", lambda images, *more: (gathered.append(len(images)), gather(images, *more))
    )
    host = Network([Conv2d(8, 3), Dense(3)], (6, 5, 8), dtype="float64")
    device = host.on(cupy)
    device.parameters = cupy.asarray(host.parameters)
    inputs, targets = np.random.default_rng(0).normal(size=(7, 6, 5, 8)), np.arange(7) % 3
    loss, gradient = device.loss_and_gradient(Batch(cupy.asarray(inputs), cupy.asarray(targets), 0))
    # Forward and backward, each for all images and rows at once.
    assert gathered == [7, 7]
    expected = host.loss_and_gradient(Batch(inputs, targets, 0))
    assert float(loss) == pytest.approx(expected[0], rel=1e-12)
    np.testing.assert_allclose(gradient.get(), expected[1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("rows", "blocks"), [(None, None), (1, 5), (2, 3), (9, 1)])
def test_rows_of_positions_in_blocks_of_any_size(cupy, monkeypatch, rows, blocks):
    host = Alone(LocallyConnected2d(3, 2, "relu"), (6, 4, 2))
    # Five rows of three positions, and 24 elements of a row's patches; or room for one of these rows of one sample.
    samples = len(host.outputs)
    monkeypatch.setattr(locally_connected2d, "PATCHES_ON_DEVICE", 24 * samples * rows if rows else 1)
    device = Alone(LocallyConnected2d(3, 2, "relu"), (6, 4, 2), xp=cupy)
    gathered, gather = [], cuda.gather_patches
    monkeypatch.setattr(cuda, "gather_patches", lambda *each: (gathered.append(1), gather(*each))[1])
    y = host.random.normal(size=host.outputs.shape)
    np.testing.assert_allclose(device.forward().get(), host.forward(), rtol=1e-12, atol=1e-12)
    assert len(gathered) == (blocks or 5 * samples)
    for found, expected in zip(device.backward(cupy.asarray(y)), host.backward(y), strict=True):
        np.testing.assert_allclose(found.get(), expected, rtol=1e-12, atol=1e-12)
