"""The line search of Moré and Thuente."""

from __future__ import annotations

from collections.abc import Generator
from math import inf, sqrt
from typing import NamedTuple

from msgspec import Struct


class Point(NamedTuple):
    """A step along the direction, with the objective's value and slope there."""

    step: float
    value: float
    slope: float


class MoreThuente(Struct, frozen=True):
    """The line search and its settings.

    Parameters
    ----------
    decrease, curvature : float
        Constants of the strong Wolfe conditions: value <= value_0 + decrease step slope_0 and
        |slope| <= curvature |slope_0|.
    width : float
        Relative width of the interval below which the search ends.
    most : int
        Largest number of evaluations.

    References
    ----------
    J. Moré, D. Thuente (1994), Line search algorithms with guaranteed sufficient decrease. The defaults are those of
    L-BFGS-B (Zhu, Byrd, Lu, Nocedal 1997).
    """

    decrease: float = 1e-3
    curvature: float = 0.9
    width: float = 0.1
    most: int = 20

    def search(self, value: float, slope: float, step: float) -> Generator[float, tuple[float, float], Point | None]:
        """Yield steps to evaluate, receive (value, slope) at each, and return the accepted point.

        Parameters
        ----------
        value, slope : float
            Value and slope at step 0; the slope is negative.
        step : float
            The first step to try.

        Returns
        -------
        Point or None
            None if no step decreased the objective enough.
        """
        start = Point(0.0, value, slope)
        low, high = start, start
        bracketed, width, double = False, inf, inf
        least, largest = 0.0, 5.0 * step
        best = start
        for _ in range(self.most):
            value, slope = yield step
            here = Point(step, value, slope)
            enough = start.value + self.decrease * step * start.slope
            if value <= enough and (best is start or value < best.value):
                best = here
            if value <= enough and abs(slope) <= self.curvature * -start.slope:
                return here
            if low.value >= value > enough:
                # Subtract the required decrease: at the minimum of the rest, both conditions hold. The paper's first
                # stage ends with a trial that decreases enough and has no negative slope. Later trials are nearer,
                # where a value as low as that one decreases enough: they don't come here anyway.
                gain = self.decrease * start.slope
                low, high, step, bracketed = _next(
                    _less(low, gain), _less(high, gain), _less(here, gain), bracketed, least, largest
                )
                low, high = _less(low, -gain), _less(high, -gain)
            else:
                low, high, step, bracketed = _next(low, high, here, bracketed, least, largest)
            if bracketed:
                if abs(high.step - low.step) >= 0.66 * double:
                    step = low.step + 0.5 * (high.step - low.step)
                double, width = width, abs(high.step - low.step)
                least, largest = sorted((low.step, high.step))
                if width <= self.width * largest or not least < step < largest:
                    break
            else:
                least, largest = step + 1.1 * (step - low.step), step + 4.0 * (step - low.step)
        return best if best is not start else None


def _less(point: Point, gain: float) -> Point:
    return Point(point.step, point.value - gain * point.step, point.slope - gain)


def _next(
    low: Point, high: Point, here: Point, bracketed: bool, least: float, largest: float
) -> tuple[Point, Point, float, bool]:
    """Return the new interval, the next step, and whether a minimum is bracketed (section 4 of the paper; dcstep)."""
    opposite = here.slope * (low.slope / abs(low.slope)) < 0
    if here.value > low.value:
        cubic, quadratic = _cubic(low, here), _quadratic(low, here)
        near = abs(cubic - low.step) < abs(quadratic - low.step)
        step, bracketed = (cubic if near else cubic + (quadratic - cubic) / 2), True
    elif opposite:
        cubic, secant = _cubic(here, low), _secant(low, here)
        step, bracketed = (cubic if abs(cubic - here.step) > abs(secant - here.step) else secant), True
    elif abs(here.slope) < abs(low.slope):
        step = _extrapolated(low, high, here, bracketed, least, largest)
    elif bracketed:
        step = _cubic(here, high)
    else:
        step = largest if here.step > low.step else least
    if here.value > low.value:
        high = here
    else:
        if opposite:
            high = low
        low = here
    return low, high, step, bracketed


def _extrapolated(low: Point, high: Point, here: Point, bracketed: bool, least: float, largest: float) -> float:
    cubic, secant = _cubic(low, here, beyond=(least, largest)), _secant(low, here)
    nearer = abs(cubic - here.step) < abs(secant - here.step)
    if bracketed:
        step = cubic if nearer else secant
        bound = here.step + 0.66 * (high.step - here.step)
        return min(bound, step) if here.step > low.step else max(bound, step)
    return max(least, min(largest, secant if nearer else cubic))


def _cubic(a: Point, b: Point, beyond: tuple[float, float] | None = None) -> float:
    """Return the minimum of the cubic through both points; with `beyond`, one of these if there is none past b."""
    theta = 3 * (a.value - b.value) / (b.step - a.step) + a.slope + b.slope
    size = max(abs(theta), abs(a.slope), abs(b.slope))
    radicand = (theta / size) ** 2 - (a.slope / size) * (b.slope / size)
    gamma = size * sqrt(max(0.0, radicand))
    if beyond is None:
        if b.step < a.step:
            gamma = -gamma
        ratio = (gamma - a.slope + theta) / (2 * gamma - a.slope + b.slope)
        return a.step + ratio * (b.step - a.step)
    if b.step > a.step:
        gamma = -gamma
    ratio = (gamma - b.slope + theta) / (gamma + (a.slope - b.slope) + gamma)
    if ratio < 0 and gamma != 0:
        return b.step + ratio * (a.step - b.step)
    return beyond[1] if b.step > a.step else beyond[0]


def _quadratic(a: Point, b: Point) -> float:
    """Return the minimum of the parabola through both values and the slope at a."""
    return a.step + a.slope / ((a.value - b.value) / (b.step - a.step) + a.slope) / 2 * (b.step - a.step)


def _secant(a: Point, b: Point) -> float:
    """Return the zero of the line through both slopes."""
    return b.step + b.slope / (b.slope - a.slope) * (a.step - b.step)
