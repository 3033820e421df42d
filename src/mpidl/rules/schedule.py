"""Learning rate schedules."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi
from typing import Annotated, Literal

from msgspec import Meta

from mpidl.errors import UsageError, quoted
from mpidl.schema import Checked, NonNegative, Positive


@dataclass(frozen=True)
class RateSchedule(Checked):
    """The factor of learning rates, those of servers and of workers, as a function of time; outer rates stay constant.

    Attributes
    ----------
    schedule : {"constant", "steps", "cosine"}
        "steps": multiply by `factor` at each of `epochs`. "cosine": follow half a cosine from 1 to 0 at the end of the
        run (Loshchilov and Hutter 2017, SGDR, equation 5 without restarts).
    epochs : list of float
        Epochs at which "steps" lowers the rates.
    factor : float
        Factor of each step.
    warm_up : float
        Number of epochs in which rates rise linearly from 0 to full size (Goyal et al. 2017, section 2.2).
    """

    schedule: Literal["constant", "steps", "cosine"] = "constant"
    epochs: list[Positive] | None = None
    factor: Annotated[float, Meta(gt=0, le=1)] = 0.1
    warm_up: NonNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schedule == "steps" and not self.epochs:
            raise UsageError("epochs: missing, expected the epochs at which rates step down, such as [200]")
        if self.schedule != "steps" and self.epochs is not None:
            raise UsageError(f"epochs: {quoted(self.epochs)}, the schedule {self.schedule!r} takes none")

    def at(self, epoch: float, length: float) -> float:
        """Return the factor, in [0, 1], after `epoch` out of `length` epochs."""
        warm = min(1.0, epoch / self.warm_up) if self.warm_up else 1.0
        if self.schedule == "cosine":
            return warm * (1 + cos(pi * min(1.0, epoch / length))) / 2
        passed = sum(epoch >= each for each in self.epochs or ())
        return warm * float(self.factor**passed)
