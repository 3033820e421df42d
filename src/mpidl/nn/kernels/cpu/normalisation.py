"""Normalisation of matrices by their columns' or their rows' mean and variance."""

from __future__ import annotations

from functools import partial

import numpy as np

from mpidl.jit import jit


@jit
def column_moments(values, mean, variance):  # type: ignore[no-untyped-def]
    """Overwrite `mean` and `variance` (m,) by those of the columns of `values` (n, m), the variance over n."""
    n, m = values.shape
    total = np.zeros(m)
    for i in range(n):
        for j in range(m):
            total[j] += values[i, j]
    total /= n
    squares = np.zeros(m)
    for i in range(n):
        for j in range(m):
            deviation = values[i, j] - total[j]
            squares[j] += deviation * deviation
    for j in range(m):
        mean[j], variance[j] = total[j], squares[j] / n


@jit
def normalise_columns(values, mean, inverse, scale, shift, outputs):  # type: ignore[no-untyped-def]
    """outputs = (values - mean) * inverse * scale + shift; matrices (n, m) and rows (m,)."""
    n, m = values.shape
    for i in range(n):
        for j in range(m):
            outputs[i, j] = (values[i, j] - mean[j]) * (inverse[j] * scale[j]) + shift[j]


@jit
def chain_columns(values, mean, inverse, gradient, scale_gradient, shift_gradient):  # type: ignore[no-untyped-def]
    """Overwrite the gradients (m,) of scale and shift, given that of the outputs (n, m)."""
    n, m = values.shape
    products, sums = np.zeros(m), np.zeros(m)
    for i in range(n):
        for j in range(m):
            sums[j] += gradient[i, j]
            products[j] += gradient[i, j] * (values[i, j] - mean[j])
    for j in range(m):
        scale_gradient[j], shift_gradient[j] = products[j] * inverse[j], sums[j]


@jit
def spread_columns(values, mean, inverse, scale, scale_gradient, shift_gradient, gradient):  # type: ignore[no-untyped-def]
    """Turn the gradient of the outputs (n, m) into that of the values, in place; see `chain_columns`."""
    n, m = values.shape
    factor, slope, offset = np.empty_like(mean), np.empty_like(mean), np.empty_like(mean)
    for j in range(m):
        factor[j] = scale[j] * inverse[j]
        slope[j] = factor[j] * inverse[j] * scale_gradient[j] / n
        offset[j] = factor[j] * shift_gradient[j] / n
    for i in range(n):
        for j in range(m):
            gradient[i, j] = factor[j] * gradient[i, j] - offset[j] - slope[j] * (values[i, j] - mean[j])


@partial(jit, reassociate=True)
def normalise_rows(values, epsilon, scale, shift, outputs, mean, inverse):  # type: ignore[no-untyped-def]
    """outputs = (values - mean) * inverse * scale + shift, of each row (m,); `mean` and `inverse` (n,) are kept."""
    n, m = values.shape
    for i in range(n):
        total = values[i, 0] * 0
        for j in range(m):
            total += values[i, j]
        center = total / m
        squares = center * 0
        for j in range(m):
            squares += (values[i, j] - center) ** 2
        mean[i] = center
        inverse[i] = 1 / np.sqrt(squares / m + epsilon)
        for j in range(m):
            outputs[i, j] = (values[i, j] - center) * inverse[i] * scale[j] + shift[j]


@partial(jit, reassociate=True)
def chain_rows(values, mean, inverse, scale, gradient, scale_gradient, shift_gradient):  # type: ignore[no-untyped-def]
    """Overwrite the gradients (m,) of scale and shift, and turn that of the outputs (n, m) into that of the values."""
    n, m = values.shape
    products, sums = np.zeros(m), np.zeros(m)
    for i in range(n):
        along = across = values[i, 0] * 0
        for j in range(m):
            deviation = (values[i, j] - mean[i]) * inverse[i]
            products[j] += gradient[i, j] * deviation
            sums[j] += gradient[i, j]
            gradient[i, j] *= scale[j]
            across += gradient[i, j]
            along += gradient[i, j] * deviation
        across, along = across / m, along / m
        for j in range(m):
            deviation = (values[i, j] - mean[i]) * inverse[i]
            gradient[i, j] = inverse[i] * (gradient[i, j] - across - deviation * along)
    for j in range(m):
        scale_gradient[j], shift_gradient[j] = products[j], sums[j]
