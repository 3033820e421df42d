"""Durations in virtual time, as distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Protocol

import numpy as np
from msgspec import Meta

from mpidl.engines.virtual.cut import UNCUT, Cut
from mpidl.errors import UsageError, quoted
from mpidl.shards.shard import CHUNK_BYTES


class Distribution(Protocol):
    """A distribution of durations in seconds."""

    @property
    def mean(self) -> float:
        """Mean of what is drawn."""

    def __call__(self, random: np.random.Generator) -> float:
        """Draw one duration with a random generator."""


def _check(low: float, high: float) -> None:
    if not 0 <= low <= high < float("inf"):
        raise ValueError


@dataclass(frozen=True)
class Constant:
    """Always the same duration."""

    seconds: float = 0.0

    def __post_init__(self) -> None:
        _check(0, self.seconds)

    @property
    def mean(self) -> float:
        return self.seconds

    def __call__(self, random: np.random.Generator) -> float:
        return self.seconds


@dataclass(frozen=True)
class Uniform:
    """Uniform between two bounds."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _check(self.low, self.high)

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2

    def __call__(self, random: np.random.Generator) -> float:
        return float(random.uniform(self.low, self.high))


@dataclass(frozen=True)
class Exponential:
    """Exponential, without memory."""

    mean: float

    def __post_init__(self) -> None:
        _check(0, self.mean)

    def __call__(self, random: np.random.Generator) -> float:
        return float(random.exponential(self.mean))


@dataclass(frozen=True)
class Jitter:
    """Log-normal with the given mean, and a standard deviation of `deviation` times the mean."""

    mean: float
    deviation: float

    def __post_init__(self) -> None:
        _check(0, self.mean)
        _check(0, self.deviation)

    def __call__(self, random: np.random.Generator) -> float:
        if not self.mean or not self.deviation:
            return self.mean
        variance = math.log1p(self.deviation**2)
        return float(random.lognormal(math.log(self.mean) - variance / 2, math.sqrt(variance)))


DISTRIBUTIONS: dict[str, Callable[..., Distribution]] = {
    "constant": Constant, "uniform": Uniform, "exponential": Exponential, "jitter": Jitter,
}  # fmt: skip


def parse(text: str, key: str) -> Distribution:
    """Return the distribution that a configuration's `key` describes, such as "jitter:0.017:0.1".

    Raises
    ------
    UsageError
        `text` describes none.
    """
    name, *words = text.split(":")
    try:
        if not words:
            return Constant(float(name))
        return DISTRIBUTIONS[name](*map(float, words))
    except (KeyError, TypeError, ValueError):
        raise UsageError(
            f"{key}: {quoted(text)}, expected SECONDS, 'constant:SECONDS', 'uniform:LOW:HIGH', 'exponential:MEAN' or "
            f"'jitter:MEAN:DEVIATION'"
        ) from None


@dataclass(frozen=True)
class Death:
    """A replica dies, and may return.

    Attributes
    ----------
    replica : int
        The replica, from 0.
    at : float
        When it dies, in seconds of virtual time.
    returns : float, optional
        When it returns, in seconds of virtual time. By default it never does.
    """

    replica: Annotated[int, Meta(ge=0)]
    at: Annotated[float, Meta(gt=0)]
    returns: float | None = None

    def __post_init__(self) -> None:
        if self.returns is not None and self.returns <= self.at:
            raise UsageError(f"returns: {self.returns:g}, expected more than at ({self.at:g})")


@dataclass(frozen=True)
class Times:
    """The durations in a virtual cluster.

    Attributes
    ----------
    compute : Distribution
        Duration of one gradient.
    latency : Distribution
        Duration of one message between a replica and a server, whatever its size.
    service : Distribution
        Duration of a server's work on one push.
    bandwidth : float
        Bytes per second of a node's network card in each direction, which all that passes it at the same time shares;
        infinite by default. With `cores`, bytes per second of a copy.
    memory_bandwidth : float
        Bytes per second from one rank to another of its node, which don't pass the card; infinite by default.
    ranks_per_node : int
        Number of consecutive ranks on each node. By default each rank has a node of its own.
    cores : int, optional
        Number of cores that all replicas and servers share, on one node. By default each has a core of its own.
    relay : bool
        Whether nodes have relays.
    ranks : int, optional
        Number of ranks of the whole cluster, where relays leave it open; by default the most that make its replicas.
    messages : bool
        Whether nodes exchange by messages, so that a fetch goes on behind a push; through windows it doesn't.
    chunk : float
        Bytes of a push with which a server begins while the rest is on its way.
    slow : dict of int to float
        For each slow replica, the factor by which its gradients take longer.
    deaths : tuple of Death
        Replicas that die.
    cut : Cut
        How the model is cut over the ranks of a replica, each of which draws its own durations. By default it isn't.
    """

    compute: Distribution = field(default_factory=Constant)
    latency: Distribution = field(default_factory=Constant)
    service: Distribution = field(default_factory=Constant)
    bandwidth: float = float("inf")
    memory_bandwidth: float = float("inf")
    ranks_per_node: int = 1
    cores: int | None = None
    relay: bool = False
    ranks: int | None = None
    messages: bool = True
    chunk: float = CHUNK_BYTES
    slow: dict[int, float] = field(default_factory=dict)
    deaths: tuple[Death, ...] = ()
    cut: Cut = UNCUT


@dataclass(frozen=True)
class VirtualTime:
    """How time passes in a virtual cluster.

    Attributes
    ----------
    times : Times, optional
        Durations. None: nothing takes time and requests are carried out at once, which is for a single replica.
    seed : int
        Decides every duration that is drawn.
    clock : callable, optional
        Returns the time in seconds for the totals; by default virtual time, which begins at `start`.
    start : float
        Virtual time at the beginning, in seconds.
    """

    times: Times | None = None
    seed: int = 0
    clock: Callable[[], float] | None = None
    start: float = 0.0
