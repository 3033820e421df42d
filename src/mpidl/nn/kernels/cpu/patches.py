"""Patches: sliding windows of images (height, width, channels) as rows of a matrix; see `mpidl.nn.sliding_windows`."""

from __future__ import annotations

from math import prod
from typing import Any

from numpy import uintp

from mpidl.jit import jit


def gather_patches(images: Any, patches: Any, windows: Any, row: int, channel: int) -> None:
    """Copy `depth` channels of the windows at some rows of positions.

    Parameters
    ----------
    images : array (n, height, width, channels)
    patches : array (n, rows, positions across, *windows.size, depth)
        Overwritten; zero where a window extends beyond the image.
    windows : SlidingWindows
    row : int
        The first row of positions.
    channel : int
        The first of the `depth` channels.
    """
    _gather(images.reshape(-1), patches.reshape(-1), images.shape, patches.shape, *windows[1:3], row, channel)


def patch_matrix(images: Any, patches: Any, windows: Any, row: int, channel: int) -> Any:
    """Gather patches as `gather_patches` does; return them as rows of a matrix in the memory of `patches`.

    Windows of a single channel are copied column by column: a column consists of parts of the images' rows.
    """
    positions = prod(patches.shape[:3])
    if images.shape[3] > 1 or windows.stride[1] > 1:
        gather_patches(images, patches, windows, row, channel)
        return patches.reshape(positions, -1)
    vertical = windows.stride[0], windows.padding[0]
    _gather_columns(
        images.reshape(-1), patches.reshape(-1), images.shape, patches.shape, vertical, windows.padding[1], row
    )
    return patches.reshape(-1, positions).T


def scatter_patches(patches: Any, images: Any, windows: Any, row: int, channel: int) -> None:
    """Add to each pixel the sum over the windows that contain it: the adjoint of `gather_patches`."""
    _scatter(patches.reshape(-1), images.reshape(-1), images.shape, patches.shape, *windows[1:3], row, channel)


# Arrays are flat because creating a view costs more than copying a window's row. Indices in the inner loops are
# unsigned because a signed index might count from the end, which prevents vectorisation.


@jit
def _gather(images, patches, shape, windows, stride, padding, row, channel):  # type: ignore[no-untyped-def]
    _, height, width, channels = shape
    n, rows, across, down, wide, depth = windows
    whole = depth == channels
    target = 0
    for i in range(n):
        for y in range(rows):
            top = (row + y) * stride[0] - padding[0]
            for x in range(across):
                left = x * stride[1] - padding[1]
                begin, end = max(0, -left), min(wide, width - left)
                # Most windows lie inside the image: one copy per row, of a length known before the loops.
                inside = whole and end - begin == wide
                for u in range(top, top + down):
                    start, target = target, target + wide * depth
                    if u < 0 or u >= height or begin >= end:
                        set_zero(patches, start, target)
                        continue
                    source = ((i * height + u) * width + left + begin) * channels + channel
                    if inside:
                        a, b = uintp(start), uintp(source)
                        for k in range(uintp(wide * depth)):
                            patches[a + k] = images[b + k]
                        continue
                    to = start + begin * depth
                    set_zero(patches, start, to)
                    for v in range(end - begin):
                        a, b = uintp(to + v * depth), uintp(source + v * channels)
                        for k in range(uintp(depth)):
                            patches[a + k] = images[b + k]
                    set_zero(patches, start + end * depth, target)


@jit
def _gather_columns(images, patches, shape, windows, vertical, before, row):  # type: ignore[no-untyped-def]
    _, height, width, _ = shape
    n, rows, across, down, wide, _ = windows
    stride, above = vertical
    target = 0
    for u in range(down):
        for v in range(wide):
            left = v - before
            # The positions at which this column of the window lies inside the image.
            begin = min(across, max(0, -left))
            stop = max(begin, min(across, width - left))
            for i in range(n):
                for y in range(rows):
                    line = (row + y) * stride - above + u
                    end = stop if 0 <= line < height else begin
                    set_zero(patches, target, target + begin)
                    a, b = uintp(target + begin), uintp((i * height + line) * width + begin + left)
                    for k in range(uintp(end - begin)):
                        patches[a + k] = images[b + k]
                    set_zero(patches, target + end, target + across)
                    target += across


@jit
def _scatter(patches, images, shape, windows, stride, padding, row, channel):  # type: ignore[no-untyped-def]
    _, height, width, channels = shape
    n, rows, across, down, wide, depth = windows
    whole = depth == channels
    source = 0
    for i in range(n):
        for y in range(rows):
            top = (row + y) * stride[0] - padding[0]
            for x in range(across):
                left = x * stride[1] - padding[1]
                begin, end = max(0, -left), min(wide, width - left)
                for u in range(top, top + down):
                    start, source = source, source + wide * depth
                    if u < 0 or u >= height or begin >= end:
                        continue
                    target = ((i * height + u) * width + left + begin) * channels + channel
                    taken = start + begin * depth
                    if whole:
                        a, b = uintp(target), uintp(taken)
                        for k in range(uintp((end - begin) * depth)):
                            images[a + k] += patches[b + k]
                    else:
                        for v in range(end - begin):
                            a, b = uintp(target + v * channels), uintp(taken + v * depth)
                            for k in range(uintp(depth)):
                                images[a + k] += patches[b + k]


@jit
def set_zero(values, start, stop):  # type: ignore[no-untyped-def]
    """Set a range of values to zero."""
    for k in range(uintp(start), uintp(stop)):
        values[k] = 0
