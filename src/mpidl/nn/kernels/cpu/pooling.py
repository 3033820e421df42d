"""Pooling: each window of images (height, width, channels) becomes one value; see `mpidl.nn.sliding_windows`.

Maxima and sums are first taken vertically, over whole rows of the image, and then horizontally. The loops are long
even with few channels, and windows that overlap in a row share its result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import uintp

from mpidl.jit import jit
from mpidl.nn.kernels.cpu.patches import set_zero


def max_pool(images: Any, outputs: Any, winners: Any, windows: Any) -> None:
    """Overwrite `outputs` with the maxima over windows, NaN if one contains NaN, and `winners` with their positions.

    Parameters
    ----------
    images : array (n, height, width, channels)
    outputs : array (n, *windows.positions, channels)
    winners : int32 array (n, *windows.positions, channels)
        Index of the first pixel in the image, in row-major order, that has the window's maximum.
    windows : SlidingWindows
    """
    _max(images.reshape(-1), outputs.reshape(-1), winners.reshape(-1), images.shape, *windows[:4])


def backprop_max_pool(winners: Any, output_gradient: Any, input_gradient: Any) -> None:
    """Overwrite each pixel's `input_gradient` with the sum over the outputs whose maximum it is; see `max_pool`."""
    depth = winners.shape[-1]
    _backprop_max(
        winners.reshape(len(winners), -1, depth),
        output_gradient.reshape(len(winners), -1, depth),
        input_gradient.reshape(len(winners), -1, depth),
    )


def pool(images: Any, outputs: Any, windows: Any, squares: bool) -> None:
    """Overwrite `outputs` with the means over windows of `images` or, if `squares`, the roots of the sums of squares.

    See `max_pool`.
    """
    _pool(images.reshape(-1), outputs.reshape(-1), squares, images.shape, *windows[:4])


def backprop_pool(
    images: Any, outputs: Any, output_gradient: Any, input_gradient: Any, windows: Any, squares: bool
) -> None:
    """Overwrite `input_gradient`; see `pool`.

    With `squares`, a window of zeros passes no gradient on, and `output_gradient` is scratch space.
    """
    arrays = (images, outputs, output_gradient, input_gradient)
    _backprop_pool(*[each.reshape(-1) for each in arrays], squares, images.shape, *windows[:4])


# Arrays are flat and indices in the inner loops are unsigned, as in `patches`. The padding is less than the size, so
# every window contains a pixel of the image; its first one initialises the sum or maximum.


@jit
def _max(images, outputs, winners, shape, size, stride, padding, positions):  # type: ignore[no-untyped-def]
    n, height, width, channels = shape
    row, starts = np.empty(width * channels, images.dtype), np.empty(width * channels, np.int32)
    depth, target = uintp(channels), uintp(0)
    for i in range(n):
        for y in range(positions[0]):
            first, last = _extent(y, size[0], stride[0], padding[0], height)
            for u in range(first, last):
                source, start = uintp((i * height + u) * width * channels), np.int32(u * width)
                for k in range(uintp(row.size)):
                    value = images[source + k]
                    # A value that differs from itself is NaN, which is kept.
                    better = u == first or value > row[k] or value != value
                    row[k] = value if better else row[k]
                    starts[k] = start if better else starts[k]
            for x in range(positions[1]):
                begin, end = _extent(x, size[1], stride[1], padding[1], width)
                for v in range(begin, end):
                    source, column = uintp(v * channels), np.int32(v)
                    for k in range(depth):
                        value, best = row[source + k], outputs[target + k]
                        place, other = np.int32(starts[source + k] + column), winners[target + k]
                        better = v == begin or value > best or value != value or (value == best and place < other)
                        outputs[target + k] = value if better else best
                        winners[target + k] = place if better else other
                target += depth


@jit
def _backprop_max(winners, output_gradient, input_gradient):  # type: ignore[no-untyped-def]
    n, positions, channels = winners.shape
    for i in range(n):
        input_gradient[i] = 0
        for j in range(positions):
            for k in range(channels):
                input_gradient[i, winners[i, j, k], k] += output_gradient[i, j, k]


@jit
def _pool(images, outputs, squares, shape, size, stride, padding, positions):  # type: ignore[no-untyped-def]
    """Overwrite `outputs` with means over windows or, if `squares`, with the roots of sums of squares."""
    n, height, width, channels = shape
    row = np.empty(width * channels, images.dtype)
    scale = images.dtype.type(1 / (size[0] * size[1]))
    length = uintp(positions[1] * channels)
    target = uintp(0)
    for i in range(n):
        for y in range(positions[0]):
            first, last = _extent(y, size[0], stride[0], padding[0], height)
            for u in range(first, last):
                source = uintp((i * height + u) * width * channels)
                for k in range(uintp(row.size)):
                    value = images[source + k]
                    term = value * value if squares else value
                    row[k] = term if u == first else row[k] + term
            _sum_across(row, outputs, target, channels, size[1], stride[1], padding[1], positions[1])
            for k in range(target, target + length):
                outputs[k] = np.sqrt(outputs[k]) if squares else outputs[k] * scale
            target += length


@jit
def _backprop_pool(images, outputs, output_gradient, input_gradient, squares, shape, size, stride, padding, positions):  # type: ignore[no-untyped-def]
    """Overwrite `input_gradient`; images and outputs count only if `squares`."""
    n, height, width, channels = shape
    row = np.empty(width * channels, input_gradient.dtype)
    zero, scale = row.dtype.type(0), row.dtype.type(1 / (size[0] * size[1]))
    length = uintp(positions[1] * channels)
    source = uintp(0)
    for i in range(n):
        set_zero(input_gradient, i * height * width * channels, (i + 1) * height * width * channels)
        for y in range(positions[0]):
            first, last = _extent(y, size[0], stride[0], padding[0], height)
            if squares:
                for k in range(source, source + length):
                    output_gradient[k] = zero if outputs[k] == zero else output_gradient[k] / outputs[k]
            _spread_across(output_gradient, source, row, channels, size[1], stride[1], padding[1], positions[1])
            for u in range(first, last):
                target = uintp((i * height + u) * width * channels)
                for k in range(uintp(row.size)):
                    input_gradient[target + k] += (images[target + k] if squares else scale) * row[k]
            source += length


@jit
def _extent(position, size, stride, padding, extent):  # type: ignore[no-untyped-def]
    """Return the start and stop of the part of a window that lies inside the image."""
    start = position * stride - padding
    return max(0, start), min(extent, start + size)


@jit
def _sum_across(row, outputs, target, channels, size, stride, padding, positions):  # type: ignore[no-untyped-def]
    """Overwrite a row of outputs, from index `target` on, with the sums over windows of a row of pixels."""
    depth = uintp(channels)
    for x in range(positions):
        begin, end = _extent(x, size, stride, padding, row.size // channels)
        a = target + uintp(x) * depth
        for v in range(begin, end):
            b = uintp(v) * depth
            for k in range(depth):
                outputs[a + k] = row[b + k] if v == begin else outputs[a + k] + row[b + k]


@jit
def _spread_across(gradient, source, row, channels, size, stride, padding, positions):  # type: ignore[no-untyped-def]
    """Overwrite a row of pixels with the sums over the windows that contain them: the adjoint of `_sum_across`."""
    depth = uintp(channels)
    row[:] = 0
    for x in range(positions):
        begin, end = _extent(x, size, stride, padding, row.size // channels)
        b = source + uintp(x) * depth
        for v in range(begin, end):
            a = uintp(v) * depth
            for k in range(depth):
                row[a + k] += gradient[b + k]
