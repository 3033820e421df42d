"""How long things take in virtual time, as distributions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np


class Distribution(Protocol):
    """Draws durations in seconds."""

    def __call__(self, random: np.random.Generator) -> float:
        """Return one duration."""


@dataclass(frozen=True)
class Constant:
    """Always the same."""

    seconds: float = 0.0

    def __call__(self, random: np.random.Generator) -> float:
        """See `Distribution`."""
        return self.seconds


@dataclass(frozen=True)
class Uniform:
    """Between two bounds."""

    low: float
    high: float

    def __call__(self, random: np.random.Generator) -> float:
        """See `Distribution`."""
        return float(random.uniform(self.low, self.high))


@dataclass(frozen=True)
class Exponential:
    """Memoryless."""

    mean: float

    def __call__(self, random: np.random.Generator) -> float:
        """See `Distribution`."""
        return float(random.exponential(self.mean))


@dataclass(frozen=True)
class Times:
    """What a virtual cluster takes for each kind of thing.

    Attributes
    ----------
    compute : Distribution
        One gradient.
    latency : Distribution
        One message between a replica and a server, whatever its size.
    service : Distribution
        A server's work on one push.
    bandwidth : float
        Bytes per second of a link; infinite by default.
    """

    compute: Distribution = field(default_factory=Constant)
    latency: Distribution = field(default_factory=Constant)
    service: Distribution = field(default_factory=Constant)
    bandwidth: float = float("inf")
