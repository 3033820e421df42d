"""The one-dimensional transforms of minimal filtering, written out: four outputs from a tile of 6 or of 8 pixels.

A tile's points are 0, some pairs of a point and its negative, and infinity; a pair's two results share their even and
their odd part.
"""

from __future__ import annotations

from numpy import uintp

from mpidl.jit import jit

DATA, DATA_ADJOINT, OUTPUTS, OUTPUTS_ADJOINT = range(4)
#: Outputs of a tile along its side, and so pixels from one tile to the next.
STEP = 4
#: The positive points by the tile's side. For 6, errors in single precision are a fourth of those of 1 and 2.
POINTS = {6: (5 / 8, 3 / 2), 8: (1 / 2, 1.0, 2.0)}
_A, _B = POINTS[6]


@jit
def transform(kind, side, source, first, across, target, start, along, length):  # type: ignore[no-untyped-def]
    """Multiply by a matrix: the entries of its argument and result are `length` numbers each, evenly spaced.

    Parameters
    ----------
    kind : int
        ``DATA``: the transposed B of the tile's side. ``OUTPUTS``: the transposed A. Or their adjoints.
    side : int
        6 or 8.
    source, target : array (any,)
    first, start : int
        Where the first entries begin.
    across, along : int
        From one entry to the next.
    length : int
    """
    if side == 6:
        _of_six(kind, source, uintp(first), uintp(across), target, uintp(start), uintp(along), uintp(length))
    else:
        _of_eight(kind, source, uintp(first), uintp(across), target, uintp(start), uintp(along), uintp(length))


@jit
def _of_six(kind, source, a0, step, target, b0, stride, length):  # type: ignore[no-untyped-def]
    a1, b1 = a0 + step, b0 + stride
    a2, b2 = a1 + step, b1 + stride
    a3, b3 = a2 + step, b2 + stride
    a4, b4 = a3 + step, b3 + stride
    a5, b5 = a4 + step, b4 + stride
    number = source.dtype.type
    a, aa, aaa = number(_A), number(_A**2), number(_A**3)
    b, bb, bbb = number(_B), number(_B**2), number(_B**3)
    both, neither = number(_A**2 + _B**2), number(_A**2 * _B**2)
    if kind == DATA:
        for k in range(length):
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
    elif kind == DATA_ADJOINT:
        for k in range(length):
            x0, x1, x2 = source[a0 + k], source[a1 + k], source[a2 + k]
            x3, x4, x5 = source[a3 + k], source[a4 + k], source[a5 + k]
            even, odd, further, odder = x1 + x2, a * (x1 - x2), x3 + x4, b * (x3 - x4)
            target[b0 + k] = neither * x0
            target[b1 + k] = neither * x5 - bb * odd - aa * odder
            target[b2 + k] = -both * x0 - bb * even - aa * further
            target[b3 + k] = odd + odder - both * x5
            target[b4 + k] = x0 + even + further
            target[b5 + k] = x5
    elif kind == OUTPUTS:
        for k in range(length):
            x1, x2, x3, x4 = source[a1 + k], source[a2 + k], source[a3 + k], source[a4 + k]
            even, odd, further, odder = x1 + x2, x1 - x2, x3 + x4, x3 - x4
            target[b0 + k] = source[a0 + k] + even + further
            target[b1 + k] = a * odd + b * odder
            target[b2 + k] = aa * even + bb * further
            target[b3 + k] = aaa * odd + bbb * odder + source[a5 + k]
    else:
        for k in range(length):
            x0, x1, x2, x3 = source[a0 + k], source[a1 + k], source[a2 + k], source[a3 + k]
            even, odd, further, odder = x0 + aa * x2, a * x1 + aaa * x3, x0 + bb * x2, b * x1 + bbb * x3
            target[b0 + k] = x0
            target[b1 + k] = even + odd
            target[b2 + k] = even - odd
            target[b3 + k] = further + odder
            target[b4 + k] = further - odder
            target[b5 + k] = x3


@jit
def _of_eight(kind, source, a0, step, target, b0, stride, length):  # type: ignore[no-untyped-def]
    a1, b1 = a0 + step, b0 + stride
    a2, b2 = a1 + step, b1 + stride
    a3, b3 = a2 + step, b2 + stride
    a4, b4 = a3 + step, b3 + stride
    a5, b5 = a4 + step, b4 + stride
    a6, b6 = a5 + step, b5 + stride
    a7, b7 = a6 + step, b6 + stride
    number = source.dtype.type
    quarter, half, two, four = number(1 / 4), number(1 / 2), number(2), number(4)
    # Sums of the squares of two points, and of all three.
    lower, outer, upper, all_three = number(5 / 4), number(17 / 4), number(5), number(21 / 4)
    if kind == DATA:
        for k in range(length):
            x0, x1, x2, x3 = source[a0 + k], source[a1 + k], source[a2 + k], source[a3 + k]
            x4, x5, x6, x7 = source[a4 + k], source[a5 + k], source[a6 + k], source[a7 + k]
            even, odd = x6 - upper * x4 + four * x2, half * (x5 - upper * x3) + two * x1
            further, odder = x6 - outer * x4 + x2, x5 - outer * x3 + x1
            furthest, oddest = x6 - lower * x4 + quarter * x2, two * (x5 - lower * x3) + half * x1
            target[b0 + k] = x6 - x0 + all_three * (x2 - x4)
            target[b1 + k] = even + odd
            target[b2 + k] = even - odd
            target[b3 + k] = further + odder
            target[b4 + k] = further - odder
            target[b5 + k] = furthest + oddest
            target[b6 + k] = furthest - oddest
            target[b7 + k] = x7 - x1 + all_three * (x3 - x5)
    elif kind == DATA_ADJOINT:
        for k in range(length):
            x0, x1, x2, x3 = source[a0 + k], source[a1 + k], source[a2 + k], source[a3 + k]
            x4, x5, x6, x7 = source[a4 + k], source[a5 + k], source[a6 + k], source[a7 + k]
            even, odd = x1 + x2, half * (x1 - x2)
            further, odder = x3 + x4, x3 - x4
            furthest, oddest = x5 + x6, two * (x5 - x6)
            target[b0 + k] = -x0
            target[b1 + k] = four * odd + odder + quarter * oddest - x7
            target[b2 + k] = all_three * x0 + four * even + further + quarter * furthest
            target[b3 + k] = all_three * x7 - upper * odd - outer * odder - lower * oddest
            target[b4 + k] = -all_three * x0 - upper * even - outer * further - lower * furthest
            target[b5 + k] = odd + odder + oddest - all_three * x7
            target[b6 + k] = x0 + even + further + furthest
            target[b7 + k] = x7
    elif kind == OUTPUTS:
        for k in range(length):
            x1, x2, x3 = source[a1 + k], source[a2 + k], source[a3 + k]
            x4, x5, x6 = source[a4 + k], source[a5 + k], source[a6 + k]
            even, odd = x1 + x2, half * (x1 - x2)
            further, odder = x3 + x4, x3 - x4
            furthest, oddest = x5 + x6, two * (x5 - x6)
            target[b0 + k] = source[a0 + k] + even + further + furthest
            target[b1 + k] = odd + odder + oddest
            target[b2 + k] = quarter * even + further + four * furthest
            target[b3 + k] = quarter * odd + odder + four * oddest + source[a7 + k]
    else:
        for k in range(length):
            x0, x1, x2, x3 = source[a0 + k], source[a1 + k], source[a2 + k], source[a3 + k]
            even, odd = x0 + quarter * x2, half * (x1 + quarter * x3)
            further, odder = x0 + x2, x1 + x3
            furthest, oddest = x0 + four * x2, two * (x1 + four * x3)
            target[b0 + k] = x0
            target[b1 + k] = even + odd
            target[b2 + k] = even - odd
            target[b3 + k] = further + odder
            target[b4 + k] = further - odder
            target[b5 + k] = furthest + oddest
            target[b6 + k] = furthest - oddest
            target[b7 + k] = x3
