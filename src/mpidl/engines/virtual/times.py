"""Durations in virtual time, as distributions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from msgspec import Struct

from mpidl.engines.virtual.cut import UNCUT, ReplicaCut
from mpidl.errors import UsageError, quoted
from mpidl.schema import Natural, Positive
from mpidl.shards.shard import CHUNK_BYTES
from mpidl.topology.roles import Roles
from mpidl.topology.takeover import Fixed
from mpidl.wire import Wire


class Distribution(Protocol):
    """A distribution of durations in seconds."""

    @property
    def mean(self) -> float:
        """Mean duration."""

    def __call__(self, random: np.random.Generator) -> float:
        """Draw one duration with a random generator."""


def _check(low: float, high: float) -> None:
    if not 0 <= low <= high < float("inf"):
        raise ValueError


class Constant(Struct, frozen=True):
    """Always the same duration."""

    seconds: float = 0.0

    def __post_init__(self) -> None:
        _check(0, self.seconds)

    @property
    def mean(self) -> float:
        return self.seconds

    def __call__(self, random: np.random.Generator) -> float:
        return self.seconds


class Uniform(Struct, frozen=True):
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


class Exponential(Struct, frozen=True):
    """Exponential, without memory."""

    mean: float

    def __post_init__(self) -> None:
        _check(0, self.mean)

    def __call__(self, random: np.random.Generator) -> float:
        return float(random.exponential(self.mean))


class Jitter(Struct, frozen=True):
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
    """Return the distribution described by a configuration's `key`, such as "jitter:0.017:0.1".

    Raises
    ------
    UsageError
        `text` is malformed.
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
        Time of its death, in seconds of virtual time.
    returns : float, optional
        Time of its return, in seconds of virtual time. By default it never returns.
    """

    replica: Natural
    at: Positive
    returns: float | None = None

    def __post_init__(self) -> None:
        if self.returns is not None and self.returns <= self.at:
            raise UsageError(f"returns: {self.returns:g}, expected more than at ({self.at:g})")


@dataclass(frozen=True)
class Failures:
    """Failures of ranks and nodes, and what follows from them.

    Attributes
    ----------
    of_rank, of_node : Distribution, optional
        Seconds between two failures of a rank, and of a node with all of its ranks; by default there are none.
    every : float
        Seconds of training between two checkpoints.
    saving : float
        Seconds for which a checkpoint holds up the training.
    takeover : float
        Seconds until another process plays the rank of one that has died.
    restart : Distribution
        Seconds until all ranks train again after a failure that ends the job.
    fixed : Fixed
        Why ranks can't be taken over. By default every failure ends the job, which starts again.
    min_workers : int
        Smallest number of workers; with fewer, the job ends and restarts.
    """

    of_rank: Distribution | None = None
    of_node: Distribution | None = None
    every: float = math.inf
    saving: float = 0.0
    takeover: float = 0.0
    restart: Distribution = field(default_factory=Constant)
    fixed: Fixed = field(default_factory=lambda: Fixed("no rank is taken over"))
    min_workers: int = 1


class Intermediaries(Protocol):
    """Ranks that exchange with the servers for replicas."""

    def assign(self, nodes: Sequence[int], servers: int, partitions: int) -> Roles:
        """Return the role of each rank, given its node."""
        ...

    def __call__(self, number: int, replicas: Sequence[int], cluster: Any, traffic: Any, wire: Wire | None) -> Any:
        """Return intermediary `number` of a virtual cluster, which exchanges for `replicas`, with its traffic."""
        ...


@dataclass(frozen=True)
class Times:
    """The durations in a virtual cluster.

    Attributes
    ----------
    compute : Distribution
        Duration of one gradient.
    latency : Distribution
        Duration of one message between a replica and a server, regardless of its size.
    service : Distribution
        Duration of a server's work on one push.
    bandwidth : float
        Bytes per second of a node's network card in each direction, shared by simultaneous messages; infinite by
        default. With `cores`, bytes per second of a copy.
    memory_bandwidth : float
        Bytes per second between ranks of one node; infinite by default.
    ranks_per_node : int
        Number of consecutive ranks on each node. By default each rank has its own node.
    cores : int, optional
        Number of cores of one node that all replicas and servers share. By default each has its own core.
    intermediaries : Intermediaries, optional
        Ranks that exchange with the servers for replicas; by default there are none.
    ranks : int, optional
        Number of ranks of the whole cluster; by default the most that make its replicas.
    messages : bool
        Whether nodes exchange by messages, so that a fetch can follow right behind a push; through windows it can't.
    chunk : float
        Bytes of a push with which a server begins while the rest is on its way.
    slow : dict of int to float
        For each slow replica, the factor of its gradients' durations.
    deaths : tuple of Death
        Replicas that die.
    failures : Failures, optional
        Failures of ranks and nodes; by default there are none.
    standby : int
        Number of ranks that wait for work; none with intermediaries.
    cut : Cut
        Division of the model over the ranks of a replica, each with its own random durations. By default it is uncut.
    """

    compute: Distribution = field(default_factory=Constant)
    latency: Distribution = field(default_factory=Constant)
    service: Distribution = field(default_factory=Constant)
    bandwidth: float = float("inf")
    memory_bandwidth: float = float("inf")
    ranks_per_node: int = 1
    cores: int | None = None
    intermediaries: Intermediaries | None = None
    ranks: int | None = None
    messages: bool = True
    chunk: float = CHUNK_BYTES
    slow: dict[int, float] = field(default_factory=dict)
    deaths: tuple[Death, ...] = ()
    failures: Failures | None = None
    standby: int = 0
    cut: ReplicaCut = UNCUT


@dataclass(frozen=True)
class VirtualTime:
    """The passage of time in a virtual cluster.

    Without `times`, for a single replica, nothing takes time. The `seed` determines every duration. The `clock` returns
    the time of the totals in seconds; by default it is virtual time, which begins at `start`.
    """

    times: Times | None = None
    seed: int = 0
    clock: Callable[[], float] | None = None
    start: float = 0.0
