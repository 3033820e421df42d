"""Winograd's transforms between images (height, width, channels) and square tiles; see `mpidl.nn.winograd`.

Tiles of side s are an array (s * s, n, rows of tiles, tiles across, channels): each position in a tile has a contiguous
matrix of its own. There may be gaps between the matrices.

The one-dimensional transforms are those of minimal filtering (Lavin, Gray 2016): four outputs from a tile of 6 or 8
pixels. The interpolation points are 0, pairs of a number and its negative, and infinity. The results for a pair are the
sum and the difference of an even and an odd part. The formulas are plain arithmetic: they apply to numbers and to SIMD
vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isqrt
from typing import Any

from numpy import uintp

from mpidl.jit import Compiled, jit
from mpidl.nn.kernels.cpu.patches import set_zero

DATA, DATA_ADJOINT, OUTPUTS, OUTPUTS_ADJOINT = range(4)
#: Number of outputs along a tile's side, which is also the distance in pixels between tiles.
STEP = 4
#: The positive points for each tile size. For size 6, these cause a fourth of the float32 errors of the points 1 and 2.
POINTS = {6: (5 / 8, 3 / 2), 8: (1 / 2, 1.0, 2.0)}

Entries = Sequence[Any]
A, B = POINTS[6]
AA, BB, BOTH, NEITHER = A**2, B**2, A**2 + B**2, A**2 * B**2


def data_of_6(x: Entries) -> Entries:
    """Return the transposed B times x."""
    even, odd = x[4] - BB * x[2], A * (x[3] - BB * x[1])
    further, odder = x[4] - AA * x[2], B * (x[3] - AA * x[1])
    first, last = NEITHER * x[0] - BOTH * x[2] + x[4], NEITHER * x[1] - BOTH * x[3] + x[5]
    return first, even + odd, even - odd, further + odder, further - odder, last


def data_adjoint_of_6(x: Entries) -> Entries:
    """Return B times x."""
    even, odd, further, odder = x[1] + x[2], A * (x[1] - x[2]), x[3] + x[4], B * (x[3] - x[4])
    return (
        NEITHER * x[0],
        NEITHER * x[5] - BB * odd - AA * odder,
        -BOTH * x[0] - BB * even - AA * further,
        odd + odder - BOTH * x[5],
        x[0] + even + further,
        x[5],
    )


def outputs_of_6(x: Entries) -> Entries:
    """Return the transposed A times x."""
    even, odd, further, odder = x[1] + x[2], A * (x[1] - x[2]), x[3] + x[4], B * (x[3] - x[4])
    return x[0] + even + further, odd + odder, AA * even + BB * further, AA * odd + BB * odder + x[5]


def outputs_adjoint_of_6(x: Entries) -> Entries:
    """Return A times x."""
    even, odd = x[0] + AA * x[2], A * (x[1] + AA * x[3])
    further, odder = x[0] + BB * x[2], B * (x[1] + BB * x[3])
    return x[0], even + odd, even - odd, further + odder, further - odder, x[3]


def data_of_8(x: Entries) -> Entries:
    """Return the transposed B times x."""
    even, odd = x[6] - 5.0 * x[4] + 4.0 * x[2], 0.5 * (x[5] - 5.0 * x[3]) + 2.0 * x[1]
    further, odder = x[6] - 4.25 * x[4] + x[2], x[5] - 4.25 * x[3] + x[1]
    furthest, oddest = x[6] - 1.25 * x[4] + 0.25 * x[2], 2.0 * (x[5] - 1.25 * x[3]) + 0.5 * x[1]
    first, last = x[6] - x[0] + 5.25 * (x[2] - x[4]), x[7] - x[1] + 5.25 * (x[3] - x[5])
    pairs = even + odd, even - odd, further + odder, further - odder, furthest + oddest, furthest - oddest
    return first, *pairs, last


def data_adjoint_of_8(x: Entries) -> Entries:
    """Return B times x."""
    (even, odd), (further, odder), (furthest, oddest) = _pairs_of_8(x)
    return (
        -x[0],
        4.0 * odd + odder + 0.25 * oddest - x[7],
        5.25 * x[0] + 4.0 * even + further + 0.25 * furthest,
        5.25 * x[7] - 5.0 * odd - 4.25 * odder - 1.25 * oddest,
        -5.25 * x[0] - 5.0 * even - 4.25 * further - 1.25 * furthest,
        odd + odder + oddest - 5.25 * x[7],
        x[0] + even + further + furthest,
        x[7],
    )


def outputs_of_8(x: Entries) -> Entries:
    """Return the transposed A times x."""
    (even, odd), (further, odder), (furthest, oddest) = _pairs_of_8(x)
    return (
        x[0] + even + further + furthest,
        odd + odder + oddest,
        0.25 * even + further + 4.0 * furthest,
        0.25 * odd + odder + 4.0 * oddest + x[7],
    )


def outputs_adjoint_of_8(x: Entries) -> Entries:
    """Return A times x."""
    even, odd = x[0] + 0.25 * x[2], 0.5 * (x[1] + 0.25 * x[3])
    further, odder = x[0] + x[2], x[1] + x[3]
    furthest, oddest = x[0] + 4.0 * x[2], 2.0 * (x[1] + 4.0 * x[3])
    pairs = even + odd, even - odd, further + odder, further - odder, furthest + oddest, furthest - oddest
    return x[0], *pairs, x[3]


def _pairs_of_8(x: Entries) -> Sequence[tuple[Any, Any]]:
    return (x[1] + x[2], 0.5 * (x[1] - x[2])), (x[3] + x[4], x[3] - x[4]), (x[5] + x[6], 2.0 * (x[5] - x[6]))


#: The formulas by tile size and kind.
FORMULAS: dict[int, tuple[Callable[[Entries], Entries], ...]] = {
    6: (data_of_6, data_adjoint_of_6, outputs_of_6, outputs_adjoint_of_6),
    8: (data_of_8, data_adjoint_of_8, outputs_of_8, outputs_adjoint_of_8),
}


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


def _codelets(kinds: Sequence[int], add: bool) -> Any:
    from mpidl.nn.kernels.cpu.codelets import codelets

    return codelets({key: each for key, each in CODELETS.items() if key % 4 in kinds}, add)


_set = Compiled(lambda: _codelets(range(4), add=False))
_add = Compiled(lambda: _codelets((DATA_ADJOINT, OUTPUTS), add=True))


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
