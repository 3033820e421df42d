"""The windows of images (height, width, channels), as rows of a matrix; see `mpidl.nn.windows.Windows`."""

from __future__ import annotations

from math import prod
from typing import Any

from numpy import uintp

from mpidl.jit import jit


def gather_patches(images: Any, patches: Any, of: Any, row: int, channel: int) -> None:
    """Copy some channels of the windows at some rows of positions.

    Parameters
    ----------
    images : array (n, height, width, channels)
    patches : array (n, rows, positions across, *of.size, depth)
        Overwritten; zero where a window hangs over the edge.
    of : Windows
    row : int
        The first row of positions.
    channel : int
        The first of the `depth` channels.
    """
    _gather(images.reshape(-1), patches.reshape(-1), images.shape, patches.shape, of.stride, of.padding, row, channel)


def patch_matrix(images: Any, patches: Any, of: Any, row: int, channel: int) -> Any:
    """Do what `gather_patches` does; return the windows as rows of a matrix, which lies in the memory of `patches`.

    Windows of a single channel are copied by columns of the matrix, each of which is made of rows of the images.
    """
    positions = prod(patches.shape[:3])
    if images.shape[3] > 1 or of.stride[1] > 1:
        gather_patches(images, patches, of, row, channel)
        return patches.reshape(positions, -1)
    vertical = of.stride[0], of.padding[0]
    _gather_columns(images.reshape(-1), patches.reshape(-1), images.shape, patches.shape, vertical, of.padding[1], row)
    return patches.reshape(-1, positions).T


def scatter_patches(patches: Any, images: Any, of: Any, row: int, channel: int) -> None:
    """Add to each pixel what the windows that have it say: the adjoint of `gather_patches`."""
    _scatter(patches.reshape(-1), images.reshape(-1), images.shape, patches.shape, of.stride, of.padding, row, channel)


# Arrays are flat, and indices in the inner loops unsigned: a view costs more than a window's row, and a signed index,
# which might be counted from the end, keeps the loop from being vectorised.


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
                # Most windows: one copy for a row, of a length known before the loops.
                inside = whole and end - begin == wide
                for u in range(top, top + down):
                    start, target = target, target + wide * depth
                    if u < 0 or u >= height or begin >= end:
                        zero(patches, start, target)
                        continue
                    source = ((i * height + u) * width + left + begin) * channels + channel
                    if inside:
                        a, b = uintp(start), uintp(source)
                        for k in range(uintp(wide * depth)):
                            patches[a + k] = images[b + k]
                        continue
                    to = start + begin * depth
                    zero(patches, start, to)
                    for v in range(end - begin):
                        a, b = uintp(to + v * depth), uintp(source + v * channels)
                        for k in range(uintp(depth)):
                            patches[a + k] = images[b + k]
                    zero(patches, start + end * depth, target)


@jit
def _gather_columns(images, patches, shape, windows, vertical, before, row):  # type: ignore[no-untyped-def]
    _, height, width, _ = shape
    n, rows, across, down, wide, _ = windows
    stride, above = vertical
    target = 0
    for u in range(down):
        for v in range(wide):
            left = v - before
            # Positions whose window has this column within the image.
            begin = min(across, max(0, -left))
            stop = max(begin, min(across, width - left))
            for i in range(n):
                for y in range(rows):
                    line = (row + y) * stride - above + u
                    end = stop if 0 <= line < height else begin
                    zero(patches, target, target + begin)
                    a, b = uintp(target + begin), uintp((i * height + line) * width + begin + left)
                    for k in range(uintp(end - begin)):
                        patches[a + k] = images[b + k]
                    zero(patches, target + end, target + across)
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
def zero(values, start, stop):  # type: ignore[no-untyped-def]
    """Set a range of values to zero."""
    for k in range(uintp(start), uintp(stop)):
        values[k] = 0
