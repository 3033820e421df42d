"""Base classes and common parts of algorithms whose replicas make local steps between exchanges."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import KW_ONLY, dataclass
from math import ceil, sqrt
from typing import Any, ClassVar, Literal

import numpy as np

from mpidl.algorithms.algorithm import Algorithm, Exchange, Pattern, Replica, check_timing
from mpidl.algorithms.replica_state import ReplicaState, Step
from mpidl.algorithms.requests import (
    Fetch,
    FinishReduction,
    Gradient,
    NextBatch,
    Push,
    Reduce,
    Request,
    Speed,
    StartReduction,
)
from mpidl.parameters.ranges import split
from mpidl.rules import RULES, Rule, Sgd
from mpidl.schema import Count, Positive
from mpidl.shards.policies import Assign, Policy

#: Names of the rules that local steps can use.
Inner = Literal["adagrad", "adam", "adamw", "momentum", "nesterov", "rmsprop", "sgd"]


@dataclass(frozen=True)
class LocalSteps(Algorithm):
    """An algorithm whose replicas make steps of their own.

    Parameters
    ----------
    rate : float
        Learning rate of the local steps, eta.
    """

    default_rule: ClassVar[Rule | None] = None

    rate: Positive | None


@dataclass(frozen=True)
class Windowed(LocalSteps):
    """An algorithm whose replicas exchange after every `window` local steps.

    Parameters
    ----------
    window : int
        Number of local steps between exchanges: lambda in Hermans' thesis, H in the papers on DiLoCo.
    """

    window: Count | None


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


@dataclass(frozen=True)
class Rounds(LocalSteps):
    """An algorithm whose replicas make a round of local steps by a rule of their own, and continue from a mean.

    Parameters
    ----------
    inner : str
        Rule of the local steps, any of `mpidl.rules`, with its other settings at their defaults. Its state stays on the
        replica.
    dynamic : bool
        Whether a slower replica makes fewer steps in a round, in proportion to its speed, so that all end together
        (dynamic local updates). Replicas are then weighted in the mean by their steps.

    References
    ----------
    B. Liu et al. (2024), Asynchronous local-SGD training for language modeling, section 4.2: dynamic local updates.
    """

    _: KW_ONLY
    inner: Inner = "momentum"
    dynamic: bool = False

    @property
    def exchange(self) -> Exchange:
        return Exchange.REDUCTION

    def policy(self, replicas: int) -> Policy:
        """Return the policy that assigns the mean."""
        return Assign()

    def check(self, deterministic: bool, rule: Rule | None) -> None:
        check_timing("dynamic", self.dynamic, deterministic)

    def inner_steps(self, parameters: Any, state: ReplicaState) -> Step:
        """Return a function of a gradient that makes a step of the replica's parameters by the inner rule."""
        state.keep("parameters", parameters)
        return state.step_by(RULES[self.inner](rate=self.rate), parameters)

    def local_steps(
        self, steps: int, parameters: Any, step: Callable[[Any], None], state: ReplicaState
    ) -> Generator[Request, Any, int]:
        """Make the steps of a round, or fewer if the data run out, and return their number.

        A resumed replica makes the remaining ones; ``counts["done"]`` is the number of those made, 0 between two
        rounds, and ``counts["window"]`` the length of a dynamic round.

        Parameters
        ----------
        steps : int
            Number of steps, or that of the fastest replica if `dynamic` is set.
        parameters : array, shape (size,)
            The replica's own; gradients are computed at them.
        step : callable
            Takes a gradient, shape (size,), and changes the parameters by it.
        state : ReplicaState
        """
        counts = state.counts
        if self.dynamic:
            if not counts["done"]:
                counts["window"] = max(1, int(steps * (yield Speed())))
            steps = counts["window"]
        while counts["done"] < steps and (batch := (yield NextBatch())) is not None:
            step((yield Gradient(parameters, batch)))
            counts["done"] += 1
        return counts.pop("done", 0)

    def reduction(self, vector: Any, parameters: Any, done: int) -> Reduce:
        """Return the request for the mean of the replicas' vectors, to which a replica without steps adds none."""
        return Reduce(vector if done else None, parameters, weight=float(done) if self.dynamic else 1.0)


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
    pushed = beside(parameters) if with_origin else parameters.copy()
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


def beside(parameters: Any) -> Any:
    """Return an array of two rows like `parameters`, for a `Push` that includes the fetched parameters."""
    return np.empty_like(parameters, shape=(2, parameters.size))


def stream(
    parameters: Any, step: Step, state: ReplicaState, window: int, fragments: int, overlap: int, mixing: float
) -> Replica:
    """Make local steps and exchange each fragment every `window` steps, at its own offset.

    A replica without data continues without steps until no replica has made any since the last exchange.

    Parameters
    ----------
    parameters : array, shape (size,)
        The replica's own.
    step : Step
        Makes a local step.
    window : int
        Number of steps between two exchanges of a fragment, H.
    fragments : int
        Number of fragments, P.
    overlap : int
        Number of steps between the start of an exchange and the use of its result, tau.
    mixing : float
        Weight of the replica's own values then, alpha; the result has the rest.

    References
    ----------
    A. Douillard et al. (2025), Streaming DiLoCo with overlapping communication, algorithm 2. A fragment's change is
    relative to the result of its last exchange, which all replicas have in common.
    """
    parts = state.fragments or split(parameters.size, fragments)
    slices = [slice(*part) for part in parts]
    offsets = [number * window // len(parts) for number in range(len(parts))]
    counts = state.counts
    # The results of the last exchanges; for fragments under way, the changes since the exchanges before.
    start = state.keep("start", parameters.copy())

    def sent(number: int) -> int:
        """Return the step after which the fragment was sent last; at most 0 if it was not."""
        return counts["position"] - (counts["position"] - offsets[number]) % window

    def begin(number: int) -> StartReduction:
        return StartReduction(start, parts[number], weight=float(counts[f"changed/{number}"] > 0))

    under_way = deque(
        sorted((n for n in range(len(parts)) if 0 < sent(n) <= counts["position"] < sent(n) + overlap), key=sent)
    )
    for number in under_way:
        # A resumed replica sends fragments again whose results aren't in its checkpoint.
        yield begin(number)
    while True:
        # All replicas ask at the same positions, with or without data: a checkpoint may be taken there.
        if (batch := (yield NextBatch())) is not None:
            step((yield Gradient(parameters, batch)))
        counts["position"] += 1
        for number, own in enumerate(slices):
            if sent(number) == counts["position"]:
                start[own] -= parameters[own]
                counts[f"changed/{number}"] = counts["steps"] - counts[f"steps/{number}"]
                counts[f"steps/{number}"] = counts["steps"]
                under_way.append(number)
                yield begin(number)
        if under_way and sent(under_way[0]) + overlap == counts["position"]:
            number = under_way.popleft()
            own, counts[f"finished/{number}"] = slices[number], counts[f"steps/{number}"]
            rest = counts["steps"] - min(counts[f"finished/{n}"] for n in range(len(parts)))
            if not (yield FinishReduction(start, rest)):
                break
            _mix(parameters[own], start[own], mixing)
    for _ in under_way:
        yield FinishReduction(start)


def _mix(own: Any, common: Any, mixing: float) -> None:
    """Mix the common values into a replica's own, of weight `mixing`; equal values keep their bits."""
    if mixing:
        own -= common
        own *= mixing
        own += common
    else:
        own[:] = common
