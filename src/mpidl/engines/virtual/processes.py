"""Processes in virtual time, and what they wait for."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import simpy

#: A process of SimPy: yields the events that it waits for.
Process = Generator[simpy.Event, Any, Any]


class Signal:
    """An event that processes can wait for again and again.

    Attributes
    ----------
    next : simpy.Event
        The next announcement.
    """

    def __init__(self, environment: simpy.Environment) -> None:
        self._environment = environment
        self.next = environment.event()

    def announce(self, value: Any = None) -> None:
        """Let all that wait for `next` go on with `value`."""
        if self.next.callbacks:
            event, self.next = self.next, self._environment.event()
            event.succeed(value)
