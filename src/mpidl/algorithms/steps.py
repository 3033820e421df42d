"""The steps that replicas make by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpidl.parameters.ranges import Range
from mpidl.rules import Rule


class Steps:
    """Makes rules into steps of one replica, at the rate that the schedule says and sparing statistics.

    Parameters
    ----------
    rate_at : callable
        Of a portion's number, what rates are multiplied by.
    sparing : list of Range
        Parameters that rules leave alone; see `mpidl.rules.Rule.update`.

    Attributes
    ----------
    portion : int
        Where the present batch is from; set by the engine.
    """

    def __init__(self, rate_at: Callable[[int], float] = lambda portion: 1.0, sparing: Sequence[Range] = ()) -> None:
        self._rate_at, self._sparing = rate_at, sparing
        self.portion = 0

    def by(self, rule: Rule, parameters: Any) -> Step:
        """Return the function that changes `parameters`, shape (size,), by a gradient."""
        return Step(rule, parameters, lambda: self._rate_at(self.portion), self._sparing)


class Step:
    """A function of a gradient.

    Attributes
    ----------
    rate : float
        Present learning rate.
    state : tuple of array
        The rule's.
    """

    def __init__(self, rule: Rule, parameters: Any, scale: Callable[[], float], sparing: Sequence[Range]) -> None:
        self._rule, self._parameters, self._scale, self._sparing = rule, parameters, scale, sparing
        self.state = rule.init(parameters)
        self._count = 0

    @property
    def rate(self) -> float:
        """Present learning rate."""
        return self._rule.rate * self._scale()

    def __call__(self, gradient: Any) -> None:
        """Change the parameters by a gradient of their shape."""
        self._count += 1
        self._rule.update(self._parameters, self.state, gradient, self._count, self.rate, sparing=self._sparing)
