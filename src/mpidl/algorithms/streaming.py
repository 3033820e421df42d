"""Streaming DiLoCo (Douillard et al. 2025): fragments are reduced one after another, while replicas compute."""

from __future__ import annotations

from collections import deque
from typing import Any

from mpidl.algorithms.algorithm import Replica
from mpidl.algorithms.replica_state import ReplicaState, Step
from mpidl.algorithms.requests import FinishReduction, Gradient, NextBatch, StartReduction
from mpidl.parameters.ranges import split


def stream(
    parameters: Any, step: Step, state: ReplicaState, window: int, fragments: int, overlap: int, mixing: float
) -> Replica:
    """Make local steps and exchange each fragment every `window` steps, at an offset of its own.

    A replica whose data have run out goes on without steps until nobody has made any since the last exchange.

    Parameters
    ----------
    parameters : array, shape (size,)
        The replica's own.
    step : Step
        Makes a local step.
    state : ReplicaState
        What the replica keeps.
    window : int
        Number of steps between two exchanges of a fragment, H.
    fragments : int
        Number of fragments, P.
    overlap : int
        Number of steps after which what comes of an exchange is used, tau.
    mixing : float
        What the replica's own values count then, alpha; those that come count the rest.

    References
    ----------
    A. Douillard et al. (2025), Streaming DiLoCo with overlapping communication, algorithm 2. What a fragment's change
    is counted from is the result of its last exchange, which all replicas have in common.
    """
    parts = state.fragments or split(parameters.size, fragments)
    slices = [slice(*part) for part in parts]
    offsets = [number * window // len(parts) for number in range(len(parts))]
    counts = state.counts
    # The results of the last exchanges; of fragments that are under way, the changes since those before.
    start = state.keep("start", parameters.copy())

    def sent(number: int) -> int:
        """Return after which step the fragment was sent last; not above 0 if it was not."""
        return counts["position"] - (counts["position"] - offsets[number]) % window

    def begin(number: int) -> StartReduction:
        return StartReduction(start, parts[number], weight=float(counts[f"changed/{number}"] > 0))

    under_way = deque(
        sorted((n for n in range(len(parts)) if 0 < sent(n) <= counts["position"] < sent(n) + overlap), key=sent)
    )
    for number in under_way:
        # A replica that is resumed sends again what its checkpoint doesn't have the result of.
        yield begin(number)
    while True:
        # All replicas ask at the same positions, whether they have data or not: there a checkpoint may be cut.
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
    """Mix the common values into a replica's own, which count `mixing`; those that are equal keep their bits."""
    if mixing:
        own -= common
        own *= mixing
        own += common
    else:
        own[:] = common
