"""Normalisation by mean and variance, of the columns or rows of a matrix, or of the pixels of images."""

from __future__ import annotations

from functools import partial

import numpy as np

from mpidl.jit import jit


@jit
def _widened(matrix):  # type: ignore[no-untyped-def]
    """Return a matrix with several of its rows as one, so that narrow ones fill vector registers, and their number."""
    n, m = matrix.shape
    rows = 1
    while 2 * rows * m <= 256 and n % (2 * rows) == 0:
        rows *= 2
    return matrix.reshape(n // rows, rows * m), rows


@jit
def _tiled(row, times):  # type: ignore[no-untyped-def]
    """Return a row (m,) repeated `times` times."""
    m = row.size
    result = np.empty(times * m, row.dtype)
    for i in range(times):
        for j in range(m):
            result[i * m + j] = row[j]
    return result


@jit
def _folded(wide, m):  # type: ignore[no-untyped-def]
    """Return the sum (m,) of the consecutive rows in `wide`."""
    total = np.zeros(m)
    for i in range(wide.size):
        total[i % m] += wide[i]
    return total


@jit
def column_moments(values, mean, variance):  # type: ignore[no-untyped-def]
    """Overwrite `mean` and `variance` (m,) with those of the columns of `values` (n, m); the variance divides by n."""
    n, m = values.shape
    wide, rows = _widened(values)
    # One pass suffices: the shift is one of the n values, so its squared distance from the mean is at most n times the
    # variance, and the final subtraction amplifies float64 rounding errors at most n times.
    first = _tiled(values[0].astype(np.float64), rows)
    totals, squares = np.zeros(wide.shape[1]), np.zeros(wide.shape[1])
    for i in range(wide.shape[0]):
        for j in range(wide.shape[1]):
            distance = wide[i, j] - first[j]
            totals[j] += distance
            squares[j] += distance * distance
    total, square = _folded(totals, m), _folded(squares, m)
    for j in range(m):
        offset = total[j] / n
        mean[j], variance[j] = first[j] + offset, square[j] / n - offset * offset


@jit
def normalise_columns(values, mean, inverse, scale, shift, outputs):  # type: ignore[no-untyped-def]
    """Set `outputs` to (values - mean) * inverse * scale + shift, for matrices (n, m) and rows (m,)."""
    (wide, rows), (results, _) = _widened(values), _widened(outputs)
    center, factor, offset = _tiled(mean, rows), _tiled(inverse * scale, rows), _tiled(shift, rows)
    for i in range(wide.shape[0]):
        for j in range(wide.shape[1]):
            results[i, j] = (wide[i, j] - center[j]) * factor[j] + offset[j]


@jit
def backprop_scale_shift(values, mean, inverse, gradient, scale_gradient, shift_gradient):  # type: ignore[no-untyped-def]
    """Overwrite the gradients (m,) of scale and shift, given the gradient of the outputs (n, m)."""
    m = values.shape[1]
    (wide, rows), (slopes, _) = _widened(values), _widened(gradient)
    center, products, sums = _tiled(mean, rows), np.zeros(wide.shape[1]), np.zeros(wide.shape[1])
    for i in range(wide.shape[0]):
        for j in range(wide.shape[1]):
            sums[j] += slopes[i, j]
            products[j] += slopes[i, j] * (wide[i, j] - center[j])
    product, total = _folded(products, m), _folded(sums, m)
    for j in range(m):
        scale_gradient[j], shift_gradient[j] = product[j] * inverse[j], total[j]


@jit
def backprop_columns(values, mean, inverse, scale, scale_gradient, shift_gradient, gradient, value_gradient):  # type: ignore[no-untyped-def]
    """Overwrite the gradient of the values (n, m), given that of the outputs; see `backprop_scale_shift`."""
    (wide, rows), (slopes, _), (results, _) = _widened(values), _widened(gradient), _widened(value_gradient)
    part = values.dtype.type(1) / values.dtype.type(len(values))
    center, factor = _tiled(mean, rows), _tiled(scale * inverse, rows)
    offset, slope = _tiled(shift_gradient * part, rows), _tiled(inverse * scale_gradient * part, rows)
    for i in range(wide.shape[0]):
        for j in range(wide.shape[1]):
            results[i, j] = factor[j] * (slopes[i, j] - offset[j] - slope[j] * (wide[i, j] - center[j]))


@partial(jit, reassociate=True)
def normalise_rows(values, epsilon, scale, shift, outputs, mean, inverse):  # type: ignore[no-untyped-def]
    """Set each row (m,) of `outputs` to (values - mean) * inverse * scale + shift; set `mean` and `inverse` (n,)."""
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
def backprop_rows(values, mean, inverse, scale, gradient, scale_gradient, shift_gradient, value_gradient):  # type: ignore[no-untyped-def]
    """Overwrite the gradients of scale and shift (m,) and of the values (n, m), given that of the outputs."""
    n, m = values.shape
    products, sums = np.zeros(m), np.zeros(m)
    for i in range(n):
        center, factor = mean[i], inverse[i]
        along = across = values[i, 0] * 0
        for j in range(m):
            deviation = (values[i, j] - center) * factor
            products[j] += gradient[i, j] * deviation
            sums[j] += gradient[i, j]
            across += gradient[i, j] * scale[j]
            along += gradient[i, j] * scale[j] * deviation
        across, along = across / m, along / m
        for j in range(m):
            deviation = (values[i, j] - center) * factor
            value_gradient[i, j] = factor * (gradient[i, j] * scale[j] - across - deviation * along)
    for j in range(m):
        scale_gradient[j], shift_gradient[j] = products[j], sums[j]


@partial(jit, reassociate=True)
def channel_moments(images, mean, variance):  # type: ignore[no-untyped-def]
    """Overwrite `mean` and `variance` with those over the channels of each pixel."""
    pixels, channels = images.shape
    zero, share = images.dtype.type(0), images.dtype.type(1 / channels)
    for i in range(pixels):
        total, squares = zero, zero
        for k in range(channels):
            total += images[i, k]
        centre = share * total
        for k in range(channels):
            difference = images[i, k] - centre
            squares += difference * difference
        mean[i], variance[i] = centre, share * squares


@jit
def normalise_contrast(images, local_mean, deviation, outputs):  # type: ignore[no-untyped-def]
    """Overwrite `outputs` (pixels, channels) with ``(images - local_mean) / deviation``."""
    pixels, channels = images.shape
    one = images.dtype.type(1)
    for i in range(pixels):
        mean, scale = local_mean[i], one / deviation[i]
        for k in range(channels):
            outputs[i, k] = scale * (images[i, k] - mean)


@partial(jit, reassociate=True)
def contrast_slopes(outputs, output_gradient, deviation, threshold, slopes, sums):  # type: ignore[no-untyped-def]
    """Overwrite `slopes` with the gradient of the squared deviation, and `sums` with that of each pixel's mean.

    With outputs y, their gradient g and the deviation d, the former is -sum(g y) / (2 d^2), or zero where d is the
    threshold; the latter is sum(g) / d, with the sign reversed.
    """
    pixels, channels = outputs.shape
    zero, half, one = outputs.dtype.type(0), outputs.dtype.type(0.5), outputs.dtype.type(1)
    least = outputs.dtype.type(threshold)
    for i in range(pixels):
        product, total = zero, zero
        for k in range(channels):
            product += output_gradient[i, k] * outputs[i, k]
            total += output_gradient[i, k]
        scale = one / deviation[i]
        slopes[i] = -half * product * scale * scale if deviation[i] > least else zero
        sums[i] = total * scale


@jit
def backprop_contrast(outputs, output_gradient, deviation, slopes, shifts, input_gradient):  # type: ignore[no-untyped-def]
    """Overwrite `input_gradient` with g / d + 2 slopes d y / channels - shifts / channels; see `contrast_slopes`."""
    pixels, channels = outputs.shape
    one, share = outputs.dtype.type(1), outputs.dtype.type(1 / channels)
    for i in range(pixels):
        scale, slope, shift = one / deviation[i], share * (slopes[i] + slopes[i]) * deviation[i], share * shifts[i]
        for k in range(channels):
            input_gradient[i, k] = scale * output_gradient[i, k] + slope * outputs[i, k] - shift
