"""Normalisation of a matrix's columns or rows; see `mpidl.nn.kernels.cpu.normalisation`."""

from __future__ import annotations

from functools import cache
from typing import Any

from mpidl.nn.kernels.cuda.module import CudaModule

MODULE = CudaModule("normalisation")


def column_moments(values: Any, mean: Any, variance: Any) -> None:
    """See the CPU's."""
    values.mean(axis=0, out=mean)
    values.var(axis=0, out=variance)


def normalise_columns(values: Any, mean: Any, inverse: Any, scale: Any, shift: Any, outputs: Any) -> None:
    """See the CPU's."""
    arrays = (values, mean, inverse, scale, shift, outputs)
    MODULE.launch("normalise_columns", values.size, *arrays, values.shape[1])


def backprop_scale_shift(
    values: Any, mean: Any, inverse: Any, gradient: Any, scale_gradient: Any, shift_gradient: Any
) -> None:
    """See the CPU's."""
    gradient.sum(axis=0, out=shift_gradient)
    _backprop_scale(values, mean, inverse, gradient, scale_gradient)


def backprop_columns(
    values: Any, mean: Any, inverse: Any, scale: Any, scale_gradient: Any, shift_gradient: Any, gradient: Any,
    value_gradient: Any,
) -> None:  # fmt: skip
    """See the CPU's."""
    arrays = (values, mean, inverse, scale, scale_gradient, shift_gradient, gradient, value_gradient)
    MODULE.launch("backprop_columns", values.size, *arrays, values.shape[1])


def normalise_rows(values: Any, epsilon: float, scale: Any, shift: Any, outputs: Any, mean: Any, inverse: Any) -> None:
    """See the CPU's."""
    arguments = (values, float(epsilon), scale, shift, outputs, mean, inverse, values.shape[1])
    MODULE.launch("normalise_rows", len(values), *arguments)


def backprop_rows(
    values: Any, mean: Any, inverse: Any, scale: Any, gradient: Any, scale_gradient: Any, shift_gradient: Any,
    value_gradient: Any,
) -> None:  # fmt: skip
    """See the CPU's."""
    gradient.sum(axis=0, out=shift_gradient)
    _backprop_scale(values, mean[:, None], inverse[:, None], gradient, scale_gradient)
    arrays = (values, mean, inverse, scale, gradient, value_gradient)
    MODULE.launch("backprop_rows", len(values), *arrays, values.shape[1])


def _backprop_scale(values: Any, mean: Any, inverse: Any, gradient: Any, scale_gradient: Any) -> None:
    """Sum (values - mean) * inverse * gradient over the rows, without storing the products."""
    import cupy

    _summed_products(cupy)(values, mean, inverse, gradient, out=scale_gradient, axis=0)


@cache
def _summed_products(cupy: Any) -> Any:
    return cupy.ReductionKernel(
        "T value, T mean, T inverse, T gradient", "T total",
        "(value - mean) * inverse * gradient", "a + b", "total = a", "0", "mpidl_backprop_scale",
    )  # fmt: skip
