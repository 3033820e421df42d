"""The network of a virtual cluster: what flows at the same time shares the nodes' cards."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter

import numpy as np
import simpy

from mpidl.engines.virtual.fair_shares import advance, fair_shares, next_ends

#: Part of a flow's bytes that rounding may leave over at its end.
ROUNDING = 1e-9
#: Changes of the rates while as many flows come or go as are under way.
CHANGES = 100


class Network:
    """Nodes with a network card each, and flows between them at max-min fair rates, as in SimGrid.

    A card carries so many bytes per second outwards and as many inwards, which the flows through it share. Rates are
    fair at every moment: they change when a flow begins or ends. (Casanova et al., Versatile, scalable, and accurate
    simulation of distributed applications and platforms, 2014.) If hundreds are under way, they change when a hundredth
    of these has begun or ended; a flow waits until then.

    Parameters
    ----------
    environment : simpy.Environment
    bandwidths : array, shape (nodes,)
        Bytes per second of each node's card, in each direction.

    Attributes
    ----------
    carried : array, shape (2, nodes)
        Bytes that have begun to flow out of, and into each node.
    """

    def __init__(self, environment: simpy.Environment, bandwidths: np.ndarray) -> None:
        self._environment = environment
        self._capacities = np.stack([bandwidths, bandwidths]).astype(np.float64)
        self.carried = np.zeros_like(self._capacities)
        self._spare, self._crossing = np.empty_like(self._capacities), np.empty_like(self._capacities)
        self._cards = np.empty((3, self._capacities.size + 1), np.int64)
        # The flows under way, in no order; `_begun` has the event of each, and its number since the beginning.
        self._begun: list[tuple[int, simpy.Event]] = []
        self._count = self._waiting = 0
        self._ends = np.empty((2, 0), np.int64)
        self._left = self._rates = self._least = self._waits = np.empty(0)
        self._indices, self._places = np.empty(0, np.int64), np.empty(0, np.int64)
        self._then, self._changing = environment.now, False
        self._version, self._due, self._wait, self._next = 0, float("inf"), 0.0, -1

    def send(self, sender: int, receiver: int, size: float) -> simpy.Event:
        """Return an event that occurs when `size` bytes have flowed from one node to another."""
        event = self._environment.event()
        if not size:
            return event.succeed()
        flow = len(self._begun)
        if flow == self._left.size:
            self._grow(max(16, 2 * flow))
        self._ends[0, flow], self._ends[1, flow] = sender, receiver
        self.carried[0, sender] += size
        self.carried[1, receiver] += size
        self._left[flow], self._rates[flow], self._least[flow] = size, 0.0, ROUNDING * size
        self._begun.append((self._count, event))
        self._count += 1
        self._waiting += 1
        if not self._changing and self._waiting >= self._together(flow):
            # Flows that begin at the same moment change the rates once.
            self._changing = True
            self._call_after(0.0, self._change)
        return event

    def _together(self, flows: int) -> int:
        """Return how many flows begin or end together, if so many are under way."""
        return max(1, flows // CHANGES)

    def _grow(self, capacity: int) -> None:
        """Make room for so many flows."""

        def grown(array: np.ndarray) -> np.ndarray:
            larger: np.ndarray = np.empty((*array.shape[:-1], capacity), array.dtype)
            larger[..., : array.shape[-1]] = array
            return larger

        self._ends, self._left, self._rates = grown(self._ends), grown(self._left), grown(self._rates)
        self._least, self._indices = grown(self._least), grown(self._indices)
        self._places, self._waits = np.empty(2 * capacity, np.int64), np.empty(capacity)

    def _change(self) -> None:
        """End the flows that are done, set the rates of the others, and wake up when the next ones have ended."""
        self._changing, self._waiting = False, 0
        self._end_flows()
        self._version += 1
        flows, version = len(self._begun), self._version
        fair_shares(
            flows, self._ends, self._capacities, self._rates, self._spare, self._crossing, self._places, self._cards
        )
        self._due = float("inf")
        if flows:
            together = self._together(flows)
            self._next, self._wait = next_ends(flows, self._left, self._rates, together, self._waits)
            self._due = self._then + self._wait
            self._call_after(self._wait, lambda: self._change() if version == self._version else None)

    def _end_flows(self) -> None:
        """Bring all flows forward to the present, and announce the end of those that are done."""
        now = self._environment.now
        seconds, self._then = now - self._then, now
        if now >= self._due:
            # Time is rounded: the flow that is due has ended, however little time has passed.
            seconds, self._least[self._next] = self._wait, float("inf")
        count = advance(len(self._begun), self._left, self._rates, self._least, seconds, self._indices)
        ended = [self._remove(flow) for flow in self._indices[:count].tolist()]
        for _, event in sorted(ended, key=itemgetter(0)):
            event.succeed()

    def _remove(self, flow: int) -> tuple[int, simpy.Event]:
        """Let the last flow take the place of one that has ended; return the number and the event of this."""
        removed, last = self._begun[flow], self._begun.pop()
        if flow < len(self._begun):
            end = len(self._begun)
            self._begun[flow] = last
            self._ends[:, flow] = self._ends[:, end]
            for each in (self._left, self._rates, self._least):
                each[flow] = each[end]
        return removed

    def _call_after(self, seconds: float, action: Callable[[], None]) -> None:
        timeout = self._environment.timeout(seconds)
        assert timeout.callbacks is not None
        timeout.callbacks.append(lambda _: action())
