"""L-BFGS: its history, its direction from inner products alone, and the line search of Moré and Thuente."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpidl.algorithms.coordination import Operate
from mpidl.algorithms.curvature import DIRECTION, GRADIENT, PREVIOUS, ROUNDING, Operating
from mpidl.shards.vectors import Combine, Dot


def direction(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the coefficients of the direction -H g in the basis s_0, ..., s_(k-1), y_0, ..., y_(k-1), g.

    This is the two-loop recursion in the coordinates of that basis, where every inner product is a product of
    coefficients with the Gram matrix (W. Chen, Z. Wang, J. Zhou 2014, Large-scale L-BFGS using MapReduce, algorithm 3).
    H_0 is s'y / y'y of the newest pair, or 1 if there is none.

    Parameters
    ----------
    gram : array (2k + 1, 2k + 1) of float64
        Inner products of the basis vectors, the oldest pair first; s_i'y_i > 0.

    Returns
    -------
    array (2k + 1,) of float64
        The coefficients.
    """
    k = len(gram) // 2
    curvature = np.diagonal(gram[:k, k : 2 * k])
    coefficients = np.zeros(2 * k + 1)
    coefficients[-1] = -1
    alpha = np.zeros(k)
    for i in reversed(range(k)):
        alpha[i] = coefficients @ gram[:, i] / curvature[i]
        coefficients[k + i] -= alpha[i]
    if k:
        coefficients *= curvature[-1] / gram[2 * k - 1, 2 * k - 1]
    for i in range(k):
        beta = coefficients @ gram[:, k + i] / curvature[i]
        coefficients[i] += alpha[i] - beta
    return coefficients


class History:
    """The pairs of steps and gradient differences, each in a slot, and the inner products of these and the gradient."""

    def __init__(self, most: int, order: list[int]) -> None:
        self._most, self.order = most, order
        self._products: dict[tuple[str, str], float] = {}

    @property
    def free(self) -> int:
        """An unused slot."""
        return next(slot for slot in range(self._most + 1) if slot not in self.order)

    def names(self) -> list[str]:
        """Return the names of the basis vectors, the oldest pair first."""
        return [f"{letter}{slot}" for letter in "sy" for slot in self.order] + [GRADIENT]

    def push(self, slot: int) -> None:
        """Add the pair of a slot to the history, and remove the oldest pair from a full one."""
        self.order.append(slot)
        del self.order[: -self._most]

    def missing(self, fresh: list[str]) -> tuple[tuple[str, str], ...]:
        """Return the pairs of basis vectors whose inner product is unknown; `fresh` vectors have changed."""
        names = self.names()
        for key in [key for key in self._products if set(key) & set(fresh)]:
            del self._products[key]
        pairs = [(a, b) for i, a in enumerate(names) for b in names[i:]]
        return tuple(pair for pair in pairs if pair not in self._products)

    def learn(self, pairs: tuple[tuple[str, str], ...], values: list[float]) -> None:
        """Store the inner products of pairs of vectors."""
        self._products.update(zip(pairs, values, strict=True))

    def gram(self) -> np.ndarray:
        """Return the matrix of all inner products."""
        names = self.names()
        matrix = np.empty((len(names), len(names)))
        for i, a in enumerate(names):
            for j, b in enumerate(names[i:], i):
                matrix[i, j] = matrix[j, i] = self._products[a, b]
        return matrix


class LimitedMemory:
    """The curvature in a history of at most `most` pairs, which resumes from `state` (`mpidl.algorithms.curvature`)."""

    def __init__(self, most: int, state: Mapping[str, Any]) -> None:
        self._history = History(most, list(state.get("order", ())))
        self._fresh = self._history.names()

    @staticmethod
    def vectors(most: int) -> tuple[str, ...]:
        """Return the names of its vectors on the shards."""
        return tuple(f"{letter}{slot}" for letter in "sy" for slot in range(most + 1))

    @property
    def known(self) -> bool:
        return bool(self._history.order)

    def gradient_norm(self) -> Operating[float]:
        pairs = self._history.missing(self._fresh)
        self._history.learn(pairs, (yield Operate((Dot(pairs),))))
        return sqrt(self._history.gram()[-1, -1])

    def direction(self) -> tuple[Combine, ...]:
        coefficients = direction(self._history.gram()).tolist()
        return (Combine(DIRECTION, tuple(zip(coefficients, self._history.names(), strict=True))),)

    def learn(self, step: float, gradient: str) -> Operating[None]:
        """Add the pair of a step to the history, unless its curvature isn't positive."""
        slot = self._history.free
        s, y = f"s{slot}", f"y{slot}"
        operations = (
            Combine(s, ((step, DIRECTION),)),
            Combine(y, ((1.0, gradient), (-1.0, PREVIOUS))),
            Dot(((s, y), (y, y))),
        )
        curvature, square = yield Operate(operations)
        if curvature > ROUNDING * square:
            self._history.push(slot)
        self._fresh = [GRADIENT, s, y]

    def forget(self) -> Operating[None]:
        yield from ()
        self._history.order.clear()
        self._fresh = [GRADIENT]

    def state(self) -> dict[str, Any]:
        return {"order": list(self._history.order)}


class Point(NamedTuple):
    """A step along the direction, with the objective's value and slope there."""

    step: float
    value: float
    slope: float


@dataclass(frozen=True)
class MoreThuente:
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
