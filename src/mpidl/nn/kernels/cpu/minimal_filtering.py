"""The one-dimensional transforms of minimal filtering (Lavin, Gray 2016): four outputs from a tile of 6 or 8 pixels.

The interpolation points are 0, pairs of a number and its negative, and infinity. The results for a pair are the sum and
the difference of an even and an odd part. The formulas are plain arithmetic: they apply to numbers and to SIMD vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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
