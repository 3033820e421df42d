"""Algorithms whose replicas push each gradient by itself, and differ in what servers make of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mpidl.algorithms.algorithm import Algorithm, Pattern, Replica, check_timing
from mpidl.algorithms.commits import with_origin_row
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Clock, Fetch, Gradient, NextBatch, Push
from mpidl.rules import Rule
from mpidl.schema import Count, Fraction, Natural, NonNegative
from mpidl.shards.policies import (
    AccumulateGradients,
    DelayCompensated,
    FirstOfStep,
    GradientTable,
    Policy,
    inverse,
    unscaled,
)


@dataclass(frozen=True)
class EachGradient(Algorithm):
    """An algorithm whose replicas push each gradient unchanged, and fetch before the next one."""

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker, which computes all the time."""
        while (batch := (yield NextBatch())) is not None:
            yield Fetch(parameters)
            gradient = yield Gradient(parameters, batch)
            yield Push(gradient)

    def pattern(self, replicas: int) -> Pattern:
        return Pattern(pushes_gradients=not self.shard_policy(replicas).by_arrival, repeatable=True)


def _next_update(clock: int) -> int:
    return 1


@dataclass(frozen=True)
class BackupSync(EachGradient):
    """N + b replicas compute each step, which uses the first N gradients that arrive and drops the others.

    Parameters
    ----------
    backup : int
        Number of backup workers, b. At least one gradient is used in each step.
    grace : float
        Seconds during which more gradients may join the first N after these have arrived.
    restart : bool
        Whether a worker whose gradient is late when the step ends gives it up and begins anew with the same batch, so
        that a step takes as long as the N-th fastest of N + b new gradients. Otherwise it finishes the gradient, which
        is dropped, and is late for the next step too.
    """

    name: ClassVar[str] = "backup_sync"

    backup: Natural = 1
    grace: NonNegative = 0.0
    restart: bool = False

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker in algorithm 3 of the paper."""
        while (batch := (yield NextBatch())) is not None:
            yield Fetch(parameters, newer=True)
            gradient = yield Gradient(parameters, batch, late_by=_next_update if self.restart else None)
            if gradient is not None:
                yield Push(gradient)

    def policy(self, replicas: int) -> Policy:
        """Return the parameter server in algorithm 4 of the paper."""
        return FirstOfStep(max(1, replicas - self.backup), replicas, self.grace)

    def pattern(self, replicas: int) -> Pattern:
        pattern = super().pattern(replicas)
        return pattern._replace(pushes_gradients=False, gives_up=True) if self.restart else pattern

    def check(self, deterministic: bool, rule: Rule | None) -> None:
        check_timing(self, deterministic, "grace", "restart")


@dataclass(frozen=True)
class Dcasgd(Algorithm):
    """Servers correct a late gradient by a first-order estimate of its change since it was computed.

    Parameters
    ----------
    variance : float, optional
        Factor of the squared gradient in the estimate of the Hessian's diagonal, lambda. With 0 the algorithm is plain
        asynchronous SGD. By default 0.04, and 2 if `adaptive` is set, as in the paper.
    adaptive : bool
        Divide `variance` by the root of a moving mean of the squared gradients, element by element (DC-ASGD-a).
    decay : float
        Fraction of the moving mean that remains at each update, m; used if `adaptive` is set.
    """

    name: ClassVar[str] = "dcasgd"

    variance: NonNegative | None = None
    adaptive: bool = False
    decay: Fraction = 0.95

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker of the paper."""
        pushed = with_origin_row(parameters)
        gradient, origin = pushed
        while (batch := (yield NextBatch())) is not None:
            yield Fetch(parameters)
            origin[:] = parameters
            gradient[:] = yield Gradient(parameters, batch)
            yield Push(pushed)

    def policy(self, replicas: int) -> Policy:
        """Return the policy that compensates the delay of each gradient before the rule applies it."""
        variance = (2.0 if self.adaptive else 0.04) if self.variance is None else self.variance
        return DelayCompensated(variance, self.decay if self.adaptive else None)

    def pattern(self, replicas: int) -> Pattern:
        return super().pattern(replicas)._replace(repeatable=True)


@dataclass(frozen=True)
class Ringleader(EachGradient):
    """Servers keep a mean gradient of each replica, and update by the mean of all: once for each replica in a round.

    Notes
    -----
    x <- x - rate (1/n) sum_i (1/b_i) sum_j g_ij, where g_ij are the b_i gradients of replica i in this round. A round
    first gathers until each replica has pushed; then each replica's next push makes an update, and what it pushes after
    that belongs to the next round. Where each replica has data of its own, training converges to the optimum of the
    mean of their objectives. No replica waits, no gradient is dropped, and none is more than 2 n - 2 updates late. A
    server needs the memory of n + 1 more vectors like its parameters.
    """

    name: ClassVar[str] = "ringleader"

    def policy(self, replicas: int) -> Policy:
        """Return the policy that keeps the gradients of all replicas."""
        return GradientTable(replicas)

    def pattern(self, replicas: int) -> Pattern:
        return super().pattern(replicas)._replace(even=True)


@dataclass(frozen=True)
class Softsync(EachGradient):
    """Servers make one update from every floor(replicas / n) gradients, from any replicas.

    Parameters
    ----------
    n : int
        Divisor of the number of replicas. With 1, an update has as many gradients as there are replicas; with the
        number of replicas it has one, as in Downpour.
    modulate : bool
        Whether the rate of each gradient is divided by its staleness: alpha_0 / max(staleness, 1), also in the steps
        that it makes later by momentum.

    Notes
    -----
    1-softsync is not synchronous SGD: a fast replica may contribute two of the gathered gradients.

    The mean staleness is (replicas - 1) / c, regardless of timing, if each replica computes all the time. It is less if
    exchanges take as long as gradients, because a replica that waits for its push computes nothing that becomes stale.

    Where each replica has data of its own, training leans towards those of fast replicas; with `modulate` further than
    by their speeds alone, since gradients of slow replicas are staler.
    """

    name: ClassVar[str] = "softsync"

    n: Count = 1
    modulate: bool = True

    def policy(self, replicas: int) -> Policy:
        """Return the policy that gathers floor(replicas / n) gradients, the paper's c."""
        return AccumulateGradients(max(1, replicas // self.n), inverse if self.modulate else unscaled)


@dataclass(frozen=True)
class Ssp(EachGradient):
    """Downpour in which the fastest replica is never more than `bound` steps ahead of the slowest.

    Parameters
    ----------
    bound : int
        Largest number of steps between the fastest and the slowest replica, s. With 0 all replicas step together.
    """

    name: ClassVar[str] = "ssp"

    bound: Natural = 3

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker, which at clock c reads all updates up to c - s - 1."""
        while (batch := (yield NextBatch())) is not None:
            yield Fetch(parameters)
            gradient = yield Gradient(parameters, batch)
            yield Push(gradient)
            yield Clock(self.bound)

    def pattern(self, replicas: int) -> Pattern:
        return super().pattern(replicas)._replace(even=True)
