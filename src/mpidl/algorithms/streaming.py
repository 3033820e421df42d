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
