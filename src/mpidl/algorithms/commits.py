"""Algorithms whose replicas commit the change of a window of local steps (Hermans 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any, ClassVar, Literal

import numpy as np

from mpidl.algorithms.algorithm import Pattern, Replica
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push
from mpidl.algorithms.windowed import Windowed
from mpidl.rules import Sgd
from mpidl.schema import Count, Positive
from mpidl.shards.policies import AddChange, DampedChange, Policy, inverse_plus_one


@dataclass(frozen=True)
class Commits(Windowed):
    """An algorithm whose replicas commit the mean of a window's steps, by default of windows that grow with replicas.

    Parameters
    ----------
    rate : float, optional
        Learning rate of the local steps, eta. By default the lowest of 0.5, 0.8 / sqrt(replicas) and
        0.4 window / replicas.
    window : int, optional
        Number of local steps between exchanges: lambda in Hermans' thesis. By default 3/4 of the number of replicas,
        rounded up, and at least 2.

    Notes
    -----
    A commit is R - 1 commits stale with R replicas. Along an eigenvector of the Hessian with eigenvalue h, it covers
    (1 - (1 - eta h)^lambda) / lambda of the distance to the minimum, at most 1 / lambda for eta h <= 1. With such a
    delay less than 2 sin(pi / (4 R - 2)), about pi / (2 R), is stable. So with lambda > 2 R / pi commits are stable at
    any rate at which local steps are, and with shorter windows at rates in proportion to lambda / R.
    """

    rate: Positive | None = None
    window: Count | None = None

    def pattern(self, replicas: int) -> Pattern:
        return super().pattern(replicas)._replace(repeatable=True)

    def default_window(self, replicas: int) -> int:
        """Return the default of `window`."""
        return max(2, ceil(3 * replicas / 4))

    def chosen(self, replicas: int) -> tuple[float, int]:
        """Return `rate` and `window`, or their defaults."""
        window = self.default_window(replicas) if self.window is None else self.window
        rate = min(0.5, 0.8 / sqrt(replicas), 0.4 * window / replicas) if self.rate is None else self.rate
        return rate, window


def commit_windows(
    parameters: Any, rate: float, window: int, state: ReplicaState, factor: float = 1.0, with_origin: bool = False
) -> Replica:
    """Fetch, make `window` steps of plain SGD, push their change times `factor`, and repeat until the data run out.

    Parameters
    ----------
    parameters : array, shape (size,)
        The replica's own.
    rate : float
        Learning rate, eta.
    window : int
        Number of steps between pushes, lambda; the last push of a run may have fewer.
    with_origin : bool
        Whether each `Push` includes the fetched parameters.
    """
    counts, local = state.counts, state.step_by(Sgd(rate), parameters)
    pushed = with_origin_row(parameters) if with_origin else parameters.copy()
    change, start = pushed if with_origin else (pushed, pushed)
    if window > 1:
        state.keep("parameters", parameters)
        state.keep("start", start)

    def commit() -> Push:
        np.subtract(parameters, start, out=change)
        np.multiply(change, factor, out=change)
        if factor == 1.0:
            # Others commit theirs before this replica sees them: the sum of whole changes would overshoot.
            state.scale_statistics(change, 1 / counts["done"])
        counts.pop("done")
        return Push(pushed)

    while (batch := (yield NextBatch())) is not None:
        if counts["done"] == 0:
            yield Fetch(parameters)
            start[:] = parameters
        local((yield Gradient(parameters, batch)))
        counts["done"] += 1
        if counts["done"] == window:
            yield commit()
    if counts["done"]:
        yield commit()


def with_origin_row(parameters: Any) -> Any:
    """Return an array of two rows like `parameters`, for a `Push` that includes the fetched parameters."""
    return np.empty_like(parameters, shape=(2, parameters.size))


@dataclass(frozen=True)
class Agn(Commits):
    """Replicas commit the change of `window` local steps divided by `window`, and fetch the parameters again.

    dist-keras calls this algorithm ADAG; the ADAG of Hermans' thesis is `Adag`. With a window of 1 it is Downpour with
    plain SGD. A last window of fewer steps is divided by `window` too.
    """

    name: ClassVar[str] = "agn"

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker of the thesis."""
        rate, window = self.chosen(replicas)
        return commit_windows(parameters, rate, window, state, 1 / window)

    def policy(self, replicas: int) -> Policy:
        """Return the policy that adds the changes."""
        return AddChange()


@dataclass(frozen=True)
class Adag(Commits):
    """Replicas commit the change of `window` local steps, scaled down where other replicas have moved the parameters.

    This is the ADAG of Hermans' thesis; the ADAG of dist-keras is `Agn`.

    Parameters
    ----------
    damping : {"coordinate", "norm"}
        Scaling of a change d if the parameters have moved by m since they were fetched. "coordinate" adds
        (d / window) / (m^2 / rate + 1) coordinate by coordinate, as the author's code does. "norm" adds
        d / (|m|^2 / rate + 1), as in the thesis, but with the norm of each chunk of a server's shard, of at most
        1 MiB, since no server knows that of the whole vector: results depend on the number of servers, in
        deterministic runs too. It doesn't divide by `window`, which is then 2 by default.
    """

    name: ClassVar[str] = "adag"

    damping: Literal["coordinate", "norm"] = "coordinate"

    def default_window(self, replicas: int) -> int:
        return 2 if self.damping == "norm" else super().default_window(replicas)

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker of the thesis."""
        rate, window = self.chosen(replicas)
        factor = 1.0 if self.damping == "norm" else 1 / window
        return commit_windows(parameters, rate, window, state, factor, with_origin=True)

    def policy(self, replicas: int) -> Policy:
        """Return the policy that scales a change by the parameters' movement since the worker's fetch."""
        return DampedChange(self.chosen(replicas)[0], self.damping == "norm")


@dataclass(frozen=True)
class Dynsgd(Windowed):
    """Replicas commit the change of `window` local steps, which servers divide by its staleness + 1."""

    name: ClassVar[str] = "dynsgd"

    rate: Positive = 0.2
    window: Count = 4

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker of the thesis."""
        return commit_windows(parameters, self.rate, self.window, state)

    def policy(self, replicas: int) -> Policy:
        """Return the policy that adds the changes, each divided by its staleness + 1."""
        return AddChange(inverse_plus_one)

    def pattern(self, replicas: int) -> Pattern:
        return super().pattern(replicas)._replace(repeatable=True)
