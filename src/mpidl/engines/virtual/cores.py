"""Cores shared by all ranks of a virtual node."""

from __future__ import annotations

import heapq
import itertools

import simpy


class Cores:
    """Cores with processor sharing: if there are more jobs than cores, all run at the same fraction of full speed.

    Urgent jobs share the cores only with each other. They are those of servers, which the kernel runs as soon as they
    wake up. An urgent job without a free core displaces the longest other job until the urgent job ends, even if a core
    becomes free earlier: the kernel doesn't move a process for such a short time.
    """

    def __init__(self, environment: simpy.Environment, count: int) -> None:
        self._environment = environment
        self._urgent, self._others = _Queue(), _Queue()
        self._count = count
        self._now = environment.now
        self._version = 0
        self._planned, self._end = float("inf"), 0.0
        self._first = self._others

    def work(self, seconds: float, urgent: bool = False) -> simpy.Event:
        """Return an event that occurs at the end of a job that takes `seconds` on a core of its own."""
        event = self._environment.event()
        if not seconds:
            return event.succeed()
        self._advance()
        if urgent and len(self._urgent) + len(self._others) >= self._count and len(self._others):
            displaced = self._others.take_longest()
            assert event.callbacks is not None
            event.callbacks.append(lambda _: self._add(self._others, *displaced))
        self._add(self._urgent if urgent else self._others, seconds, event)
        return event

    def _add(self, queue: _Queue, seconds: float, event: simpy.Event) -> None:
        self._advance()
        queue.add(seconds, event)
        self._plan()

    def _advance(self) -> None:
        """Advance all jobs to the present, and end finished ones."""
        passed, self._now = self._environment.now - self._now, self._environment.now
        urgent, others = self._rates()
        self._urgent.advance(passed * urgent)
        self._others.advance(passed * others)
        # Rounding may leave too little work for the clock to advance: the job that is due now is finished.
        if self._now >= self._planned:
            self._first.end(self._end)

    def _rates(self) -> tuple[float, float]:
        """Return the speed of each urgent job and of each other job, as a fraction of a core's."""
        urgent, others = len(self._urgent), len(self._others)
        left = max(0, self._count - urgent)
        return (min(1.0, self._count / urgent) if urgent else 0.0, min(1.0, left / others) if others else 0.0)

    def _plan(self) -> None:
        """Wake up when the next job ends at the current speeds; this replaces the previous plan."""
        self._version += 1
        queues = zip((self._urgent, self._others), self._rates(), strict=True)
        waits = [(queue.wait(rate), queue) for queue, rate in queues if rate]
        if waits:
            wait, self._first = min(waits, key=lambda each: each[0])
            self._planned, self._end = self._now + wait, self._first.first()
            version, timeout = self._version, self._environment.timeout(wait)
            assert timeout.callbacks is not None
            timeout.callbacks.append(lambda _: self._wake(version))

    def _wake(self, version: int) -> None:
        if version == self._version:
            self._advance()
            self._plan()


class _Queue:
    """Jobs that run at the same speed; each ends when the work done for every one of them reaches the job's end."""

    def __init__(self) -> None:
        self._got = 0.0
        self._ends: list[tuple[float, int, simpy.Event]] = []
        self._ordinals = itertools.count()

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, seconds: float, event: simpy.Event) -> None:
        heapq.heappush(self._ends, (self._got + seconds, next(self._ordinals), event))

    def take_longest(self) -> tuple[float, simpy.Event]:
        """Remove the job that would end last; return its remaining seconds of work, and its event."""
        last = max(self._ends)
        self._ends.remove(last)
        heapq.heapify(self._ends)
        return last[0] - self._got, last[2]

    def first(self) -> float:
        """Return the end of the job that ends first."""
        return self._ends[0][0]

    def wait(self, rate: float) -> float:
        """Return the seconds until the first job ends at this speed."""
        return (self.first() - self._got) / rate

    def advance(self, work: float) -> None:
        self._got += work
        self.end(self._got)

    def end(self, until: float) -> None:
        """End all jobs that end at or before `until`."""
        while self._ends and self._ends[0][0] <= until:
            heapq.heappop(self._ends)[2].succeed()
