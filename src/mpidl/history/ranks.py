"""What each rank of a run does: the objects of ``status.json``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec


class RankStatus(msgspec.Struct, kw_only=True):
    """What a rank does; None where that isn't known.

    Attributes
    ----------
    rank : int
    role : str
        Such as "worker 0" or "server 1".
    host : str or None
        None of a simulated cluster.
    process : int or None
        The process that plays the rank, by the rank that it began as.
    state : str or None
        "starting", "working", "trained" (its part of the training is over), "done" (the run is) or, of a worker whose
        process has died, "dead".
    samples : number or None
        Samples that a worker has trained on.
    samples_per_second : float or None
        Since the last status; of the whole training when that is over.
    seconds : float or None
        Time of training so far, of which `shares` are the fractions by activity: those of a worker have the names of
        a record's shares; a server's are "computing" and "rest".
    staleness : float or None
        Mean staleness of the pushes to a server since the last status that knew of any.
    queue : number or None
        Pushes that wait at a server.
    memory : number or None
        Bytes in memory of the process that plays it.
    """

    rank: int
    role: str = ""
    host: str | None = None
    process: int | None = None
    state: str | None = None
    samples: float | None = None
    samples_per_second: float | None = None
    seconds: float | None = None
    shares: Mapping[str, float | None] | None = None
    staleness: float | None = None
    queue: float | None = None
    memory: float | None = None

    def share(self, activity: str) -> float | None:
        """Return the fraction of its time that it has spent on an activity."""
        return (self.shares or {}).get(activity)


def ranks(status: Mapping[str, Any] | None) -> list[RankStatus]:
    """Return the ranks of a status, but those that aren't in order."""
    listed = (status or {}).get("ranks")
    found = []
    for each in listed if isinstance(listed, list) else []:
        with suppress(msgspec.ValidationError):
            found.append(msgspec.convert(each, RankStatus))
    return found
