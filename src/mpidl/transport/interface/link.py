"""What the links of all roles have."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from mpidl.transport.protocol import Order, Saved


class Backoff(Protocol):
    """Waits between two looks at what other ranks change, while MPI goes on making progress."""

    def reset(self) -> None:
        """Say that there was work: the next pauses are short."""

    def until(self, ready: Callable[[], bool]) -> None:
        """Pause until `ready()`."""

    def progress(self) -> bool:
        """Let MPI make progress without waiting; return whether a message has arrived that nobody has received."""
        ...

    def pause(self, longest: float = math.inf) -> bool:
        """Wait a moment, at most `longest` seconds. Return whether it slept the whole time and nobody woke it."""
        ...


class Link(Protocol):
    """What every role's link has.

    Attributes
    ----------
    crowded : bool
        Whether the ranks of this node outnumber the cores that they may run on.
    """

    @property
    def crowded(self) -> bool: ...

    def backoff(self, longest: float | None = None) -> Backoff:
        """Return a back-off for this rank that sleeps up to `longest` seconds where every rank can wake it."""
        ...


class FollowerLink(Link, Protocol):
    """What the links of workers and servers have: they follow the coordinator."""

    def signal(self) -> None:
        """Tell the coordinator that a signal asked this rank to stop."""

    def order(self) -> Order:
        """Return what the coordinator has ordered."""
        ...

    def recent_order(self) -> Order:
        """Return what the coordinator had ordered when this was called last, and ask again: waits for no answer.

        The first call does, and returns what is ordered now.
        """
        ...

    def interval(self, shortest: float) -> float:
        """Return the seconds between two posts or two looks at orders: `shortest`, or more if workers are many.

        The coordinator gets at most `mpidl.transport.protocol.REQUESTS` a second of each kind from all workers.
        """
        ...

    def post(self, status: np.ndarray, wake: bool = False) -> None:
        """Post this rank's status, shape (1,); `wake` makes the coordinator look at once."""

    def report_saved(self, saved: Saved) -> None:
        """Tell the coordinator that a part of a checkpoint is on disk."""
