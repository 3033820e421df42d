"""Winograd's transforms between images (height, width, channels) and tiles of 6 x 6; see `mpidl.nn.winograd`.

Tiles lie as an array (36, n, rows of tiles, tiles across, channels), so that a place in all tiles is a matrix.
"""

from __future__ import annotations

from typing import Any

from numpy import uintp

from mpidl.jit import jit
from mpidl.nn.kernels.cpu.patches import zero

_DATA, _DATA_ADJOINT, _FOUR, _FOUR_ADJOINT, _TWO, _TWO_ADJOINT = range(6)
#: Length of a tile's side.
SIDE = 6
#: The points are 0, NEAR, -NEAR, FAR, -FAR and infinity: in single precision, errors are a fourth of those of 1 and 2.
NEAR, FAR = 5 / 8, 3 / 2


def transform_data(images: Any, tiles: Any, step: int, row: int, padding: tuple[int, int], scratch: Any) -> None:
    """Set tiles to B' d B, where d is 6 x 6 pixels of an image, zero beyond its edge.

    Parameters
    ----------
    images : array (n, height, width, channels)
    tiles : array (36, n, rows, across, channels)
    step : int
        Pixels from one tile to the next: 4 or 2.
    row : int
        The first row of tiles.
    padding : (int, int)
        How far the first tile lies beyond the upper and the left edge.
    scratch : array (at least 72 * channels,)
    """
    geometry = (step, row, *padding)
    _from_images(_DATA, SIDE, images.reshape(-1), images.shape, tiles.reshape(-1), tiles.shape, geometry, scratch)


def add_data_adjoint(tiles: Any, images: Any, step: int, row: int, padding: tuple[int, int], scratch: Any) -> None:
    """Add B t B' to the images: the adjoint of `transform_data`."""
    geometry = (step, row, *padding)
    _to_images(_DATA_ADJOINT, SIDE, tiles.reshape(-1), tiles.shape, images.reshape(-1), images.shape, geometry, scratch)


def add_outputs(tiles: Any, images: Any, step: int, row: int, scratch: Any) -> None:
    """Add A' t A, squares of `step` pixels side by side, to the images; what lies beyond their edge is left out."""
    kind, geometry = _FOUR if step == 4 else _TWO, (step, row, 0, 0)
    _to_images(kind, step, tiles.reshape(-1), tiles.shape, images.reshape(-1), images.shape, geometry, scratch)


def transform_outputs_adjoint(images: Any, tiles: Any, step: int, row: int, scratch: Any) -> None:
    """Set tiles to A g A': the adjoint of `add_outputs`."""
    kind, geometry = _FOUR_ADJOINT if step == 4 else _TWO_ADJOINT, (step, row, 0, 0)
    _from_images(kind, step, images.reshape(-1), images.shape, tiles.reshape(-1), tiles.shape, geometry, scratch)


# Arrays are flat, and indices in the inner loops unsigned, so that these are vectorised; see `patches`.


@jit
def _from_images(kind, size, images, shape, tiles, tile_shape, geometry, scratch):  # type: ignore[no-untyped-def]
    _, height, width, channels = shape
    _, n, rows, across, _ = tile_shape
    step, row, above, before = geometry
    count = n * rows * across
    window, half = scratch[: 36 * channels], scratch[36 * channels :]
    tile = 0
    for i in range(n):
        for y in range(rows):
            top = (row + y) * step - above
            for x in range(across):
                left = x * step - before
                begin, end = max(0, -left), max(0, min(size, width - left))
                for v in range(size):
                    u = top + v
                    to, after = v * size * channels, (v + 1) * size * channels
                    if 0 <= u < height:
                        start, stop = to + begin * channels, to + end * channels
                        zero(window, to, start)
                        a, b = uintp(start), uintp(((i * height + u) * width + left + begin) * channels)
                        for k in range(uintp((end - begin) * channels)):
                            window[a + k] = images[b + k]
                        zero(window, stop, after)
                    else:
                        zero(window, to, after)
                line = size * channels
                _transform(kind, window, 0, line, half, 0, line, line)
                for place in range(6):
                    to = (place * 6 * count + tile) * channels
                    _transform(kind, half, place * line, channels, tiles, to, count * channels, channels)
                tile += 1


@jit
def _to_images(kind, size, tiles, tile_shape, images, shape, geometry, scratch):  # type: ignore[no-untyped-def]
    _, height, width, channels = shape
    _, n, rows, across, _ = tile_shape
    step, row, above, before = geometry
    count = n * rows * across
    half, window = scratch[: 36 * channels], scratch[36 * channels :]
    tile = 0
    for i in range(n):
        for y in range(rows):
            top = (row + y) * step - above
            for x in range(across):
                left = x * step - before
                begin, end = max(0, -left), min(size, width - left)
                for place in range(6):
                    start = (place * count + tile) * channels
                    _transform(kind, tiles, start, 6 * count * channels, half, place * channels, 6 * channels, channels)
                for v in range(size):
                    u = top + v
                    if u < 0 or u >= height or begin >= end:
                        continue
                    _transform(kind, half, v * 6 * channels, channels, window, 0, channels, channels)
                    a, b = uintp(((i * height + u) * width + left + begin) * channels), uintp(begin * channels)
                    for k in range(uintp((end - begin) * channels)):
                        images[a + k] += window[b + k]
                tile += 1


@jit
def _transform(kind, source, first, across, target, start, along, length):  # type: ignore[no-untyped-def]
    """Multiply by a matrix: the entries of its argument and result are `length` numbers each, evenly spaced."""
    step, stride, n = uintp(across), uintp(along), uintp(length)
    a0, b0 = uintp(first), uintp(start)
    a1, b1 = a0 + step, b0 + stride
    a2, b2 = a1 + step, b1 + stride
    a3, b3 = a2 + step, b2 + stride
    a4, b4 = a3 + step, b3 + stride
    a5, b5 = a4 + step, b4 + stride
    number = source.dtype.type
    a, aa, aaa = number(NEAR), number(NEAR**2), number(NEAR**3)
    b, bb, bbb = number(FAR), number(FAR**2), number(FAR**3)
    both, neither = number(NEAR**2 + FAR**2), number(NEAR**2 * FAR**2)
    if kind == _DATA:
        for k in range(n):
            x0, x1, x2 = source[a0 + k], source[a1 + k], source[a2 + k]
            x3, x4, x5 = source[a3 + k], source[a4 + k], source[a5 + k]
            even, odd = x4 - bb * x2, a * (x3 - bb * x1)
            further, odder = x4 - aa * x2, b * (x3 - aa * x1)
            target[b0 + k] = neither * x0 - both * x2 + x4
            target[b1 + k] = even + odd
            target[b2 + k] = even - odd
            target[b3 + k] = further + odder
            target[b4 + k] = further - odder
            target[b5 + k] = neither * x1 - both * x3 + x5
    elif kind == _DATA_ADJOINT:
        for k in range(n):
            x0, x1, x2 = source[a0 + k], source[a1 + k], source[a2 + k]
            x3, x4, x5 = source[a3 + k], source[a4 + k], source[a5 + k]
            even, odd, further, odder = x1 + x2, a * (x1 - x2), x3 + x4, b * (x3 - x4)
            target[b0 + k] = neither * x0
            target[b1 + k] = neither * x5 - bb * odd - aa * odder
            target[b2 + k] = -both * x0 - bb * even - aa * further
            target[b3 + k] = odd + odder - both * x5
            target[b4 + k] = x0 + even + further
            target[b5 + k] = x5
    elif kind == _FOUR:
        for k in range(n):
            x1, x2, x3, x4 = source[a1 + k], source[a2 + k], source[a3 + k], source[a4 + k]
            even, odd, further, odder = x1 + x2, x1 - x2, x3 + x4, x3 - x4
            target[b0 + k] = source[a0 + k] + even + further
            target[b1 + k] = a * odd + b * odder
            target[b2 + k] = aa * even + bb * further
            target[b3 + k] = aaa * odd + bbb * odder + source[a5 + k]
    elif kind == _FOUR_ADJOINT:
        for k in range(n):
            x0, x1, x2, x3 = source[a0 + k], source[a1 + k], source[a2 + k], source[a3 + k]
            even, odd, further, odder = x0 + aa * x2, a * x1 + aaa * x3, x0 + bb * x2, b * x1 + bbb * x3
            target[b0 + k] = x0
            target[b1 + k] = even + odd
            target[b2 + k] = even - odd
            target[b3 + k] = further + odder
            target[b4 + k] = further - odder
            target[b5 + k] = x3
    elif kind == _TWO:
        for k in range(n):
            x1, x2, x3, x4 = source[a1 + k], source[a2 + k], source[a3 + k], source[a4 + k]
            target[b0 + k] = source[a0 + k] + (x1 + x2) + (x3 + x4)
            target[b1 + k] = a * (x1 - x2) + b * (x3 - x4) + source[a5 + k]
    else:
        for k in range(n):
            x0, x1 = source[a0 + k], source[a1 + k]
            odd, odder = a * x1, b * x1
            target[b0 + k] = x0
            target[b1 + k] = x0 + odd
            target[b2 + k] = x0 - odd
            target[b3 + k] = x0 + odder
            target[b4 + k] = x0 - odder
            target[b5 + k] = x1
