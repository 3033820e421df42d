"""The supply of portions of the data to the replicas of a virtual cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import simpy

from mpidl.data.schedule import Schedule
from mpidl.engines.virtual.server import Process, Signal


class Supply:
    """Hands out a schedule's portions, those first that replicas have given back.

    Parameters
    ----------
    schedule : Schedule
    on_epoch : callable
        Called with an epoch's number (from 1) when the first portion beyond that epoch is taken for the first time.
    taken : int
        Number of portions that were taken before.
    """

    def __init__(self, schedule: Schedule, on_epoch: Callable[[int], None], taken: int) -> None:
        self._schedule, self._on_epoch, self._tickets = schedule, on_epoch, taken
        self._given_back: deque[int] = deque()
        self._epochs: set[int] = set()
        self._taken: Signal

    def begin(self, environment: simpy.Environment) -> None:
        """Hand out portions to the replicas of an environment."""
        self._taken = Signal(environment)

    @property
    def tickets(self) -> int:
        """Number of portions taken so far, without those that were given back."""
        return min(self._tickets, self._schedule.tickets)

    @property
    def given_back(self) -> dict[int, tuple[int, int]]:
        """What replicas have given back and no other has taken, as `Schedule.given_back`."""
        given_back = self._schedule.given_back
        return {ticket: given_back[ticket] for ticket in self._given_back}

    def take(self) -> int:
        """Take a ticket."""
        if self._given_back:
            return self._given_back.popleft()
        self._tickets += 1
        self._taken.announce()
        return self._tickets - 1

    def give_back(self, parts: Iterable[tuple[int, int]]) -> None:
        """Hand out portions again, each from a batch on."""
        self._given_back.extend(self._schedule.give_back(*part) for part in parts)

    def reset(self, tickets: int, left: Iterable[tuple[int, int]]) -> None:
        """Go back to when some tickets had been taken, and some of their portions, each from a batch on, were left."""
        self._tickets = tickets
        self._given_back.clear()
        self.give_back(left)

    def announce_epoch(self, epoch: int) -> None:
        """Announce the end of an epoch, if it hasn't ended before."""
        if epoch not in self._epochs:
            self._epochs.add(epoch)
            self._on_epoch(epoch)

    def wait(self, epoch: float) -> Process:
        """Wait until all portions before the end of an epoch have been taken."""
        wanted = self._schedule.tickets_before(epoch)
        while self._tickets < wanted:
            yield self._taken.next
