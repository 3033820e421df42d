"""The coordinator's link."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from mpidl.algorithms.coordinator_requests import Segment
from mpidl.transport.interface.link import Link
from mpidl.transport.protocol import Phase, Saved


class CoordinatorLink(Link, Protocol):
    """The coordinator's ways to all other ranks.

    Attributes
    ----------
    workers, servers : structured arrays
        The status that each worker, and the holder of each shard, posted last, of `protocol.WORKER_STATUS` and
        `SERVER_STATUS`; live after `look`.
    relays : structured array
        The status of each relay, of `protocol.WORKER_STATUS`; live after `look`.
    holders : int
        Number of servers.
    sums : array (workers, sums) of float64
        The sums over its part of an evaluation that each worker posted last; live after `look`.
    """

    @property
    def workers(self) -> np.ndarray: ...
    @property
    def servers(self) -> np.ndarray: ...
    @property
    def relays(self) -> np.ndarray: ...
    @property
    def holders(self) -> int: ...
    @property
    def sums(self) -> np.ndarray: ...

    def look(self) -> None:
        """Let what other ranks posted become visible."""

    def evaluations(self) -> Iterator[tuple[int, Any]]:
        """Yield the evaluations posted since the last call: the epoch, from 1, and its record."""
        ...

    def signals(self) -> int:
        """Return how many ranks a signal asked to stop."""
        ...

    def tickets_taken(self) -> int:
        """Return how many tickets for portions have been taken."""
        ...

    def show_taken(self, taken: int) -> None:
        """Show workers that all tickets below a number have been taken."""

    def set_tickets(self, taken: int) -> int:
        """Let tickets go on from a number, and return the number before."""
        ...

    def order_save(self, number: int, last: int) -> None:
        """Order a checkpoint; orders are numbered from 1, and all stop after order `last` unless that is 0."""

    def decide_round(self, number: int) -> None:
        """Decide how many pushes of each worker are in the checkpoint of an order, where they begin rounds."""

    def saved(self) -> list[Saved]:
        """Return what other ranks have reported to be on disk since the last call."""
        ...

    def set_phase(self, phase: Phase) -> None:
        """Tell all ranks what to do that have no more portions."""

    def call(self, message: Any) -> None:
        """Send a message to all servers."""

    def answers(self) -> list[Any] | None:
        """Return each server's answer to the last call, or None while one is missing."""
        ...

    def notices(self) -> list[tuple[int, Any]]:
        """Return what servers said without being asked: pairs of a server's number and the message."""
        ...

    def show_evaluation(self, number: int, segments: Sequence[Segment]) -> None:
        """Let workers take the units of an evaluation."""

    def units_taken(self, number: int) -> int:
        """Return how many tickets for units of evaluation `number` have been taken."""
        ...

    def copies_taken(self, number: int) -> int:
        """Return how many units of evaluation `number` have been taken a second time."""
        ...

    def show_test(self, number: int) -> None:
        """Let workers evaluate the model; `number` counts the times from 1."""

    def show_over(self) -> None:
        """Tell workers that training is over."""
