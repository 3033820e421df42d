"""Winograd's transforms between images (height, width, channels) and square tiles; see `mpidl.nn.winograd`.

Tiles of side s lie as an array (s * s, n, rows of tiles, tiles across, channels), so that a place in all tiles is a
matrix.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

from numpy import uintp

from mpidl.jit import jit
from mpidl.nn.kernels.cpu.minimal_filtering import DATA, DATA_ADJOINT, OUTPUTS, OUTPUTS_ADJOINT, STEP, transform
from mpidl.nn.kernels.cpu.patches import zero


def transform_data(images: Any, tiles: Any, row: int, padding: tuple[int, int], scratch: Any) -> None:
    """Set tiles to B' d B, where d is a square of an image's pixels, zero beyond its edge.

    Parameters
    ----------
    images : array (n, height, width, channels)
    tiles : array (side * side, n, rows, across, channels)
    row : int
        The first row of tiles.
    padding : (int, int)
        How far the first tile lies beyond the upper and the left edge.
    scratch : array (at least 2 * side * side * channels,)
    """
    _tiles_of(DATA, images, tiles, row, padding, scratch)


def add_data_adjoint(tiles: Any, images: Any, row: int, padding: tuple[int, int], scratch: Any) -> None:
    """Add B t B' to the images: the adjoint of `transform_data`."""
    _add_tiles(DATA_ADJOINT, tiles, images, row, padding, scratch)


def add_outputs(tiles: Any, images: Any, row: int, scratch: Any) -> None:
    """Add A' t A, squares of 4 x 4 pixels side by side, to the images; what lies beyond their edge is left out."""
    _add_tiles(OUTPUTS, tiles, images, row, (0, 0), scratch)


def transform_outputs_adjoint(images: Any, tiles: Any, row: int, scratch: Any) -> None:
    """Set tiles to A g A': the adjoint of `add_outputs`."""
    _tiles_of(OUTPUTS_ADJOINT, images, tiles, row, (0, 0), scratch)


def _tiles_of(kind: int, images: Any, tiles: Any, row: int, padding: tuple[int, int], scratch: Any) -> None:
    side = isqrt(len(tiles))
    size = side if kind == DATA else STEP
    flat = images.reshape(-1), images.shape, tiles.reshape(-1), tiles.shape
    _from_images(kind, side, size, *flat, row, padding, scratch)


def _add_tiles(kind: int, tiles: Any, images: Any, row: int, padding: tuple[int, int], scratch: Any) -> None:
    side = isqrt(len(tiles))
    size = side if kind == DATA_ADJOINT else STEP
    flat = tiles.reshape(-1), tiles.shape, images.reshape(-1), images.shape
    _to_images(kind, side, size, *flat, row, padding, scratch)


# Arrays are flat, and indices in the inner loops unsigned, so that these are vectorised; see `patches`.


@jit
def _from_images(kind, side, size, images, shape, tiles, tile_shape, row, padding, scratch):  # type: ignore[no-untyped-def]
    _, height, width, channels = shape
    _, n, rows, across, _ = tile_shape
    above, before = padding
    count = n * rows * across
    window, half = scratch[: side * side * channels], scratch[side * side * channels :]
    tile = 0
    for i in range(n):
        for y in range(rows):
            top = (row + y) * STEP - above
            for x in range(across):
                left = x * STEP - before
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
                transform(kind, side, window, 0, line, half, 0, line, line)
                for place in range(side):
                    to = (place * side * count + tile) * channels
                    transform(kind, side, half, place * line, channels, tiles, to, count * channels, channels)
                tile += 1


@jit
def _to_images(kind, side, size, tiles, tile_shape, images, shape, row, padding, scratch):  # type: ignore[no-untyped-def]
    _, height, width, channels = shape
    _, n, rows, across, _ = tile_shape
    above, before = padding
    count = n * rows * across
    half, window = scratch[: side * side * channels], scratch[side * side * channels :]
    tile = 0
    for i in range(n):
        for y in range(rows):
            top = (row + y) * STEP - above
            for x in range(across):
                left = x * STEP - before
                begin, end = max(0, -left), min(size, width - left)
                for place in range(side):
                    start, along = (place * count + tile) * channels, side * count * channels
                    transform(kind, side, tiles, start, along, half, place * channels, side * channels, channels)
                for v in range(size):
                    u = top + v
                    if u < 0 or u >= height or begin >= end:
                        continue
                    transform(kind, side, half, v * side * channels, channels, window, 0, channels, channels)
                    a, b = uintp(((i * height + u) * width + left + begin) * channels), uintp(begin * channels)
                    for k in range(uintp((end - begin) * channels)):
                        images[a + k] += window[b + k]
                tile += 1
