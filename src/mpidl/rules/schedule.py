"""Learning rate schedules."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi
from typing import Annotated

from msgspec import Meta

from mpidl.errors import UsageError, quoted
from mpidl.functions import FunctionName, check_name
from mpidl.schema import Checked, Natural, NonNegative, Positive

NAMES = ("constant", "steps", "linear", "cosine", "one_cycle", "plateau")
#: The first and the last factor of a cycle, and the share of the run in which it rises, as in PyTorch.
CYCLE_FIRST, CYCLE_LAST, CYCLE_RISE = 1 / 25, 1 / 25e4, 0.3


@dataclass(frozen=True)
class RateSchedule(Checked):
    """The factor of learning rates, those of servers and of workers, as a function of time; outer rates stay constant.

    Attributes
    ----------
    schedule : str
        "constant"; "steps": multiply by `factor` at each of `epochs`; "linear": fall from 1 after the warm-up to 0 at
        the end of the run; "cosine": likewise, on half a cosine (Loshchilov and Hutter 2017, SGDR, equation 5 without
        restarts); "one_cycle": rise from 1/25 to 1 in the first `warm_up` epochs, by default 30 % of the run, and fall
        to 1/250000, both on half a cosine (Smith and Topin 2018, Super-convergence); "plateau": multiply by `factor`
        whenever the figure of ``run.target``, or without it the loss of evaluations, has not improved for more than
        `patience` epochs; "module:function": a function of the number of steps so far, all replicas' minibatches, that
        returns the factor.
    epochs : list of float
        Epochs at which "steps" lowers the rates.
    factor : float
        Factor of each step down.
    patience : int
        Epochs without an improvement that "plateau" waits for; 10 by default.
    warm_up : float
        Number of epochs in which rates rise linearly from 0 to full size (Goyal et al. 2017, section 2.2).
    """

    schedule: FunctionName = "constant"
    epochs: list[Positive] | None = None
    factor: Annotated[float, Meta(gt=0, le=1)] = 0.1
    patience: Natural | None = None
    warm_up: NonNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.own:
            check_name("schedule", self.schedule)
        elif self.schedule not in NAMES:
            known = ", ".join(map(repr, NAMES))
            raise UsageError(f"schedule: {quoted(self.schedule)}, expected one of {known} or 'module:function'")
        if self.schedule == "steps" and not self.epochs:
            raise UsageError("epochs: missing, expected the epochs at which rates step down, such as [200]")
        for key, schedule in (("epochs", "steps"), ("patience", "plateau")):
            if self.schedule != schedule and getattr(self, key) is not None:
                raise UsageError(f"{key}: {quoted(getattr(self, key))}, the schedule {self.schedule!r} takes none")
        if self.schedule == "plateau" and self.patience is None:
            object.__setattr__(self, "patience", 10)

    def at(self, epoch: float, length: float) -> float:
        """Return the factor, in [0, 1], after `epoch` out of `length` epochs; without that of a function."""
        if self.schedule == "one_cycle":
            return self._cycle(epoch, length)
        warm = min(1.0, epoch / self.warm_up) if self.warm_up else 1.0
        if self.schedule in ("linear", "cosine"):
            left = (length - epoch) / (length - self.warm_up) if self.warm_up < length else 1.0
            left = min(1.0, max(0.0, left))
            return warm * (left if self.schedule == "linear" else _half_cosine(0.0, 1.0, left))
        passed = sum(epoch >= each for each in self.epochs or ())
        return warm * float(self.factor**passed)

    @property
    def own(self) -> bool:
        """Whether the schedule is a function of the user's own."""
        return ":" in self.schedule

    def _cycle(self, epoch: float, length: float) -> float:
        peak = self.warm_up or CYCLE_RISE * length
        if epoch < peak:
            return _half_cosine(CYCLE_FIRST, 1.0, epoch / peak)
        return _half_cosine(1.0, CYCLE_LAST, min(1.0, (epoch - peak) / (length - peak)) if peak < length else 1.0)


def _half_cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + cos(pi * share)) / 2
