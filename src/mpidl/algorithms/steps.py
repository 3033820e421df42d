"""The steps that a replica makes by itself, between its exchanges with others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpidl.parameters.ranges import Range
from mpidl.rules import Rule


class Steps:
    """Makes a replica's own steps, at the rate that the schedule gives and without touching statistics.

    Parameters
    ----------
    rate_at : callable
        Takes a portion's number and returns the factor of learning rates for gradients of that portion.
    statistics : sequence of Range
        Parameters that rules leave alone, such as running means; see `sparing` of `mpidl.rules.Rule.update`.

    Attributes
    ----------
    portion : int
        The portion of the present batch; the engine sets it.
    """

    def __init__(self, rate_at: Callable[[int], float] = lambda portion: 1.0, statistics: Sequence[Range] = ()) -> None:
        self._rate_at, self._statistics = rate_at, statistics
        self.portion = 0

    def by(self, rule: Rule, parameters: Any) -> Step:
        """Return a function of a gradient that changes `parameters`, shape (size,), by `rule`."""
        return Step(rule, parameters, lambda: self._rate_at(self.portion), self._statistics)


class Step:
    """A function that changes a replica's parameters by a gradient.

    Parameters
    ----------
    rule : Rule
    parameters : array, shape (size,)
        Changed in place.
    scale : callable
        Returns the present factor of the rule's learning rate.
    statistics : sequence of Range
        Parameters that the rule leaves alone.

    Attributes
    ----------
    state : tuple of array
        The rule's state.
    """

    def __init__(self, rule: Rule, parameters: Any, scale: Callable[[], float], statistics: Sequence[Range]) -> None:
        self._rule, self._parameters, self._scale, self._statistics = rule, parameters, scale, statistics
        self.state = rule.init(parameters)
        self._count = 0

    @property
    def rate(self) -> float:
        """The present learning rate."""
        return self._rule.rate * self._scale()

    def __call__(self, gradient: Any) -> None:
        """Make one step by `gradient`, shape (size,)."""
        self._count += 1
        self._rule.update(self._parameters, self.state, gradient, self._count, self.rate, sparing=self._statistics)
