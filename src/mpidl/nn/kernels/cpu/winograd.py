"""Winograd's transforms between images (height, width, channels) and square tiles; see `mpidl.nn.winograd`.

Tiles of side s are an array (s * s, n, rows of tiles, tiles across, channels): each position in a tile has a contiguous
matrix of its own. There may be gaps between the matrices.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

from numpy import uintp

from mpidl.jit import jit
from mpidl.nn.kernels.cpu.codelets import codelets
from mpidl.nn.kernels.cpu.minimal_filtering import DATA, DATA_ADJOINT, FORMULAS, OUTPUTS, OUTPUTS_ADJOINT, STEP
from mpidl.nn.kernels.cpu.patches import set_zero


def transform(kind: int, images: Any, tiles: Any, row: int, padding: tuple[int, int], scratch: Any) -> None:
    """Set tiles to B' d B or to A d A', where d is a square of an image's pixels, zero outside the image.

    Parameters
    ----------
    kind : {DATA, OUTPUTS_ADJOINT}
        The former takes squares of the tiles' size, the latter adjacent squares of 4 x 4 pixels.
    images : array (n, height, width, channels)
    tiles : array (side * side, n, rows, across, channels)
    row : int
        The first row of tiles.
    padding : (int, int)
        Number of pixels by which the first tile extends beyond the upper and the left edge.
    scratch : array (at least 2 * side * side * channels,)
    """
    side = isqrt(len(tiles))
    size = side if kind == DATA else STEP
    _from_images(kind, side, size, images.reshape(-1), images.shape, tiles, row, padding, scratch)


def add_transform(kind: int, tiles: Any, images: Any, row: int, padding: tuple[int, int], scratch: Any) -> None:
    """Add B t B' (kind DATA_ADJOINT) or A' t A (OUTPUTS) to the images, except outside them: `transform`'s adjoints."""
    side = isqrt(len(tiles))
    size = side if kind == DATA_ADJOINT else STEP
    _to_images(kind, side, size, tiles, images.reshape(-1), images.shape, row, padding, scratch)


#: The formulas and the numbers of their arguments, by kind + 4 * side.
CODELETS = {
    kind + 4 * side: (formula, STEP if kind == OUTPUTS_ADJOINT else side)
    for side, formulas in FORMULAS.items()
    for kind, formula in enumerate(formulas)
}
_set = codelets(CODELETS)
_add = codelets({key: each for key, each in CODELETS.items() if key % 4 in (DATA_ADJOINT, OUTPUTS)}, add=True)


@jit
def _codelet(kind, side, source, at, target, to, repeats, length):  # type: ignore[no-untyped-def]
    """Apply the codelet for a kind of transform and a tile size."""
    _set(kind + 4 * side, source, at, target, to, repeats, length)


@jit
def _add_codelet(kind, side, source, at, target, to, repeats, length):  # type: ignore[no-untyped-def]
    """Do the same, but add the results to `target`."""
    _add(kind + 4 * side, source, at, target, to, repeats, length)


# Arrays are flat, and indices in the inner loops are unsigned, so that these are vectorised; see `patches`.


@jit
def _window(tile, tiles, shape, row, padding, size):  # type: ignore[no-untyped-def]
    """Return a tile's image, top, left, index of its first pixel, and whether it lies entirely inside the image."""
    _, height, width, channels = shape
    line, x = divmod(tile, tiles.shape[3])
    i, y = divmod(line, tiles.shape[2])
    top, left = (row + y) * STEP - padding[0], x * STEP - padding[1]
    start = ((i * height + top) * width + left) * channels
    return i, top, left, start, top >= 0 and left >= 0 and top + size <= height and left + size <= width


@jit
def _from_images(kind, side, size, images, shape, tiles, row, padding, scratch):  # type: ignore[no-untyped-def]
    channels, away = shape[3], tiles.strides[0] // tiles.itemsize
    down, line = shape[2] * channels, size * channels
    window, half = scratch[: side * side * channels], scratch[side * side * channels :]
    for tile in range(tiles.shape[1] * tiles.shape[2] * tiles.shape[3]):
        i, top, left, start, within = _window(tile, tiles, shape, row, padding, size)
        if within:
            _codelet(kind, side, images, (start, down, 0), half, (0, line, 0), 1, line)
        else:
            _copy_window(images, shape, i, top, left, size, window)
            _codelet(kind, side, window, (0, line, 0), half, (0, line, 0), 1, line)
        to = tile * channels, away, side * away
        _codelet(kind, side, half, (0, channels, line), tiles, to, side, channels)


@jit
def _copy_window(images, shape, i, top, left, size, window):  # type: ignore[no-untyped-def]
    """Copy a square of an image's pixels, with zeros outside the image."""
    _, height, width, channels = shape
    begin, end = max(0, -left), min(size, width - left)
    set_zero(window, 0, window.size)
    for v in range(max(0, -top), min(size, height - top)):
        start = ((i * height + top + v) * width + left + begin) * channels
        a, b = uintp(start), uintp((v * size + begin) * channels)
        for k in range(uintp(max(0, end - begin) * channels)):
            window[b + k] = images[a + k]


@jit
def _to_images(kind, side, size, tiles, images, shape, row, padding, scratch):  # type: ignore[no-untyped-def]
    channels, away = shape[3], tiles.strides[0] // tiles.itemsize
    down, line = shape[2] * channels, side * channels
    half, window = scratch[: side * side * channels], scratch[side * side * channels :]
    for tile in range(tiles.shape[1] * tiles.shape[2] * tiles.shape[3]):
        i, top, left, start, within = _window(tile, tiles, shape, row, padding, size)
        at = tile * channels, side * away, away
        _codelet(kind, side, tiles, at, half, (0, line, channels), side, channels)
        if within:
            _add_codelet(kind, side, half, (0, channels, line), images, (start, channels, down), size, channels)
        else:
            _codelet(kind, side, half, (0, channels, line), window, (0, channels, size * channels), size, channels)
            _add_window(window, images, shape, i, top, left, size)


@jit
def _add_window(window, images, shape, i, top, left, size):  # type: ignore[no-untyped-def]
    """Add a square to an image, except outside it."""
    _, height, width, channels = shape
    begin, end = max(0, -left), min(size, width - left)
    for v in range(max(0, -top), min(size, height - top)):
        start = ((i * height + top + v) * width + left + begin) * channels
        a, b = uintp(start), uintp((v * size + begin) * channels)
        for k in range(uintp(max(0, end - begin) * channels)):
            images[a + k] += window[b + k]
