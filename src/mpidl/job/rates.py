"""A schedule of learning rates that is a function of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite, nan

from mpidl.errors import UsageError, quoted
from mpidl.functions import call
from mpidl.rules import RateSchedule


def own_schedule(rate: RateSchedule) -> Callable[[int], float]:
    """Return the function that ``rate.schedule`` names, of the number of steps so far; else one that returns 1.

    It raises UsageError if there is no such function, or it fails or returns anything but a number of at least 0.
    """
    name = rate.schedule
    if not rate.own:
        return lambda step: 1.0

    def factor(step: int) -> float:
        found = call("rate.schedule", name, "(step)", step)
        try:
            value = float(found)
        except (TypeError, ValueError):
            value = nan
        if not (isfinite(value) and value >= 0):
            raise UsageError(f"rate.schedule: {name}: {quoted(found)} at step {step}, expected a factor of at least 0")
        return value

    return factor
