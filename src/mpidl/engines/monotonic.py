"""The clock of a run, the same on all its ranks. It is never set, unlike the wall clock, which is for time stamps."""

from __future__ import annotations

from time import monotonic
from typing import Any

#: Messages from which the one that came fastest is chosen.
TRIES = 3

#: Seconds by which the clock is ahead of this node's monotonic clock.
_ahead = 0.0


def now() -> float:
    """Return the time in seconds since some moment before the run."""
    return monotonic() + _ahead


def agree(comm: Any, near: bool) -> None:
    """Take over the clock of rank 0 on all ranks of a communicator; collective.

    `near` says whether this rank is on the node of rank 0, which has one clock.
    """
    global _ahead
    found = max(comm.bcast(monotonic()) - monotonic() for _ in range(TRIES))
    _ahead = 0.0 if near else found
