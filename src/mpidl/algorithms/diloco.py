"""DiLoCo (Douillard et al. 2023), streaming (2025), asynchronous (Liu et al. 2024) or with a quorum (2026)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mpidl.algorithms.algorithm import Exchange, Replica, check_timing
from mpidl.algorithms.replica_state import ReplicaState, Step
from mpidl.algorithms.requests import Fetch, FinishReduction, Gradient, NextBatch, Push, StartReduction
from mpidl.algorithms.windowed import Inner, Rounds, Windowed
from mpidl.errors import UsageError
from mpidl.parameters.ranges import split
from mpidl.rules import Nesterov, Rule
from mpidl.schema import Count, Fraction, Natural, NonNegative, Positive
from mpidl.shards.policies import ApplyAtOnce, DelayedNesterov, FirstOfStep, Policy

#: Fraction of a window's change of statistics that is used with delayed Nesterov. It applies means of changes, half of
#: which were computed before the last mean was applied: with more than about a third, the next mean overshoots, and a
#: running variance may become negative.
STATISTICS_SHARE = 1 / 3


@dataclass(frozen=True)
class Diloco(Rounds, Windowed):
    """Replicas make `window` local steps; an outer rule applies the mean of their changes as a gradient.

    The shards' rule is the outer rule. By default it is Nesterov(0.7, 0.9), as in the paper.

    Parameters
    ----------
    fragments : int
        Number of fragments of the parameters, P, of whole layers if there are enough. Each is exchanged every `window`
        steps, at its own offset, so that every exchange is short.
    overlap : int
        Number of local steps during an exchange, tau.
    mixing : float
        Weight of the replica's own values of a fragment at the end of an exchange, alpha; the result has the rest.
    asynchronous : bool
        Whether servers apply the change of each replica by delayed Nesterov when it arrives, so that replicas don't
        wait.
    delay : int, optional
        Number of changes between two updates of the outer momentum if `asynchronous` is set, N. By default twice the
        number of replicas.
    quorum : int, optional
        Number of changes after which servers end a round, K, so that replicas don't wait for slower ones: a later
        change is dropped, and its replica continues from the new parameters. By default a round has the changes of all
        replicas.
    grace : float
        Seconds during which more changes may join the first `quorum` after these have arrived.
    """

    name: ClassVar[str] = "diloco"
    default_rule: ClassVar[Rule | None] = Nesterov(0.7, 0.9)
    outer: ClassVar[bool] = True

    rate: Positive = 0.001
    window: Count = 16
    inner: Inner = field(default="adamw", kw_only=True)
    fragments: Count = 1
    overlap: Natural = 0
    mixing: Fraction = 0.0
    asynchronous: bool = False
    delay: Count | None = None
    quorum: Count | None = None
    grace: NonNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, least, limit in (("fragments", 1, self.window), ("overlap", 0, self.window - 1)):
            if getattr(self, key) > max(least, limit):
                raise UsageError(f"{key}: {getattr(self, key)}, expected at most {limit} with window = {self.window}")
        if self.mixing and not self.streamed:
            raise UsageError(f"mixing: {self.mixing}, expected 0 without fragments or overlap")
        if self.grace and self.quorum is None:
            raise UsageError(f"grace: {self.grace:g}, expected 0 without quorum")
        streamed = "fragments" if self.fragments > 1 else "overlap"
        given = [key for key in ("quorum", "dynamic", streamed, "asynchronous") if getattr(self, key)]
        if len(given) > 1:
            raise UsageError(f"{given[0]}: {str(getattr(self, given[0])).lower()}, can't be combined with {given[1]}")

    @property
    def streamed(self) -> int:
        return self.fragments if self.fragments > 1 or self.overlap else 0

    @property
    def exchange(self) -> Exchange:
        return Exchange.SERVERS if self.asynchronous or self.quorum is not None else Exchange.REDUCTION

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker of the first paper (algorithm 1), or of the others."""
        step = self.inner_steps(parameters, state)
        if self.streamed:
            yield from stream(parameters, step, state, self.window, self.fragments, self.overlap, self.mixing)
            return
        through_servers = self.exchange is Exchange.SERVERS
        change = state.keep("start", parameters.copy())
        while True:
            if not state.counts["done"]:
                # A replica resumed between its fetch and its first step has fetched already.
                if through_servers and not state.counts["fetched"]:
                    yield Fetch(parameters, newer=not self.asynchronous)
                    state.counts["fetched"] = 1
                change[:] = parameters
            done = yield from self.local_steps(self.window, parameters, step, state)
            change -= parameters
            if not through_servers:
                if not (yield self.reduction(change, parameters, done)):
                    break
            elif done:
                del state.counts["fetched"]
                if self.asynchronous:
                    state.scale_statistics(change, STATISTICS_SHARE)
                yield Push(change)
            else:
                break

    def policy(self, replicas: int) -> Policy:
        """Return the policy for the mean change, for the first ones, or for each by delayed Nesterov."""
        if self.quorum is not None:
            return FirstOfStep(self.quorum, replicas, self.grace)
        return DelayedNesterov(self.delay or 2 * replicas) if self.asynchronous else ApplyAtOnce()

    def check(self, deterministic: bool, rule: Rule | None) -> None:
        super().check(deterministic, rule)
        check_timing(self, deterministic, "grace")
        if self.asynchronous and not isinstance(rule, Nesterov):
            found = "none" if rule is None else rule.name
            raise UsageError(f"server.rule: {found}, expected nesterov with algorithm.asynchronous = true")

    def check_replicas(self, replicas: int, deterministic: bool) -> None:
        if self.quorum is None:
            return
        if self.quorum > replicas:
            raise UsageError(f"algorithm.quorum: {self.quorum}, expected at most {replicas}, the number of replicas")
        if self.quorum < replicas and deterministic:
            raise UsageError(
                f"algorithm.quorum: {self.quorum} of {replicas} replicas depends on timing, which rules out "
                f"run.deterministic = true, expected {replicas}"
            )


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
