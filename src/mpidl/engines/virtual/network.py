"""The network of a virtual cluster: simultaneous flows share the nodes' cards."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import numpy as np
import simpy

from mpidl.jit import jit

#: Directions of a card.
OUT, IN = 0, 1


@jit
def fair_shares(
    flows: int, ends: Any, capacities: Any, rates: Any, spare: Any, crossing: Any, listed: Any, cards: Any
) -> None:
    """Set the rates of flows to the max-min fair ones: none can be raised without lowering one that isn't larger.

    By progressive filling (Bertsekas and Gallager, Data Networks, 1992, section 6.5.2): all rates grow equally until a
    card is full, whose flows then keep their rates while the others grow further. Cards that fill up at the same rate
    take one step together.

    Parameters
    ----------
    flows : int
        Number of flows; the arrays may be longer.
    ends : array, shape (2, flows), int64
        The nodes that each flow leaves and enters.
    capacities : array, shape (2, nodes), float64
        Bytes per second of the nodes' cards, out and in.
    rates : array, shape (flows,), float64
        Overwritten with the flows' rates in bytes per second.
    spare, crossing : arrays, shape (2, nodes), float64
        Overwritten.
    listed : array, shape (2 flows,), int64
        Overwritten with the flows, card by card.
    cards : array, shape (3, 2 nodes + 1), int64
        Overwritten with the first and last indices of each card's flows in `listed`, and the cards that aren't full.
    """
    nodes = capacities.shape[1]
    begins, stops, growing = cards[0], cards[1], cards[2]
    _list_flows(flows, ends, nodes, listed, begins, stops)
    left = 0
    for card in range(2 * nodes):
        way, node = card // nodes, card % nodes
        spare[way, node], crossing[way, node] = capacities[way, node], stops[card] - begins[card]
        if crossing[way, node]:
            growing[left] = card
            left += 1
    rates[:flows] = 0.0
    while left:
        share = float("inf")
        for card in growing[:left]:
            way, node = card // nodes, card % nodes
            share = min(share, spare[way, node] / crossing[way, node])
        # Equally full cards may differ by rounding. They are moved behind the others.
        full, still, last = share * (1 + 1e-9), 0, left
        while still < last:
            card = growing[still]
            way, node = card // nodes, card % nodes
            if spare[way, node] / crossing[way, node] <= full:
                last -= 1
                growing[still], growing[last] = growing[last], card
            else:
                still += 1
        for card in growing[last:left]:
            for flow in listed[begins[card] : stops[card]]:
                if not rates[flow]:
                    rates[flow] = share
                    for way in (OUT, IN):
                        spare[way, ends[way, flow]] -= share
                        crossing[way, ends[way, flow]] -= 1.0
        left = 0
        for card in growing[:last]:
            if crossing[card // nodes, card % nodes]:
                growing[left] = card
                left += 1


@jit
def _list_flows(flows: int, ends: Any, nodes: int, listed: Any, begins: Any, stops: Any) -> None:
    """List the flows of each card in listed[begins[card] : stops[card]]."""
    begins[:] = 0
    for way in (OUT, IN):
        for flow in range(flows):
            begins[way * nodes + ends[way, flow] + 1] += 1
    for card in range(2 * nodes):
        begins[card + 1] += begins[card]
        stops[card] = begins[card]
    for way in (OUT, IN):
        for flow in range(flows):
            card = way * nodes + ends[way, flow]
            listed[stops[card]] = flow
            stops[card] += 1


@jit
def next_ends(flows: int, left: Any, rates: Any, count: int, waits: Any) -> tuple[int, float]:
    """Return the flow that is the `count`-th to end at these rates, and the seconds until then; overwrite `waits`."""
    first = 0
    for flow in range(flows):
        waits[flow] = left[flow] / rates[flow]
        if waits[flow] < waits[first]:
            first = flow
    if count == 1:
        return first, waits[first]
    wait = np.partition(waits[:flows], count - 1)[count - 1]
    return np.flatnonzero(waits[:flows] == wait)[0], wait


@jit
def advance(flows: int, left: Any, rates: Any, least: Any, seconds: float, ended: Any) -> int:
    """Lower the bytes `left` of each flow by those of `seconds` at its rate; return the number of ended flows.

    A flow ends at `least` bytes; ended flows are listed in `ended`, the last first.
    """
    count = 0
    for flow in range(flows - 1, -1, -1):
        left[flow] -= rates[flow] * seconds
        if left[flow] <= least[flow]:
            ended[count] = flow
            count += 1
    return count


#: Fraction of a flow's bytes that rounding may leave at its end.
ROUNDING = 1e-9
#: Changes of the rates per complete replacement of the flows under way.
CHANGES = 100


class Fabric:
    """Nodes with a network card each, and flows between them at max-min fair rates, as in SimGrid.

    The flows through a card share its `bandwidths`, in bytes per second, separately in each direction. Rates are always
    fair: they change when a flow begins or ends. (Casanova et al., Versatile, scalable, and accurate simulation of
    distributed applications and platforms, 2014.) With hundreds of flows, they change when a hundredth of these has
    begun or ended, and flows wait until then. `carried`, shape (2, nodes), has the bytes that have begun to flow out
    of, and into each node.
    """

    def __init__(self, environment: simpy.Environment, bandwidths: np.ndarray) -> None:
        self._environment = environment
        self._capacities = np.stack([bandwidths, bandwidths]).astype(np.float64)
        self.carried = np.zeros_like(self._capacities)
        self._spare, self._crossing = np.empty_like(self._capacities), np.empty_like(self._capacities)
        self._cards = np.empty((3, self._capacities.size + 1), np.int64)
        # The flows under way, unordered; `_begun` has the event of each, and its ordinal.
        self._begun: list[tuple[int, simpy.Event]] = []
        self._count = self._waiting = 0
        self._ends = np.empty((2, 0), np.int64)
        self._left = self._rates = self._least = self._waits = np.empty(0)
        self._indices, self._listed = np.empty(0, np.int64), np.empty(0, np.int64)
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
        """Return the number of flows that begin or end together while `flows` are under way."""
        return max(1, flows // CHANGES)

    def _grow(self, capacity: int) -> None:
        """Enlarge the arrays to `capacity` flows."""

        def grown(array: np.ndarray) -> np.ndarray:
            larger: np.ndarray = np.empty((*array.shape[:-1], capacity), array.dtype)
            larger[..., : array.shape[-1]] = array
            return larger

        self._ends, self._left, self._rates = grown(self._ends), grown(self._left), grown(self._rates)
        self._least, self._indices = grown(self._least), grown(self._indices)
        self._listed, self._waits = np.empty(2 * capacity, np.int64), np.empty(capacity)

    def _change(self) -> None:
        """End finished flows, set the rates of the others, and schedule the next change."""
        self._changing, self._waiting = False, 0
        self._end_flows()
        self._version += 1
        flows, version = len(self._begun), self._version
        fair_shares(
            flows, self._ends, self._capacities, self._rates, self._spare, self._crossing, self._listed, self._cards
        )
        self._due = float("inf")
        if flows:
            together = self._together(flows)
            self._next, self._wait = next_ends(flows, self._left, self._rates, together, self._waits)
            self._due = self._then + self._wait
            self._call_after(self._wait, lambda: self._change() if version == self._version else None)

    def _end_flows(self) -> None:
        """Advance all flows to the present, and announce the end of finished ones."""
        now = self._environment.now
        seconds, self._then = now - self._then, now
        if now >= self._due:
            # Time is rounded: the flow that is due has ended, even if no time has passed.
            seconds, self._least[self._next] = self._wait, float("inf")
        count = advance(len(self._begun), self._left, self._rates, self._least, seconds, self._indices)
        ended = [self._remove(flow) for flow in self._indices[:count].tolist()]
        for _, event in sorted(ended, key=itemgetter(0)):
            event.succeed()

    def _remove(self, flow: int) -> tuple[int, simpy.Event]:
        """Replace a flow that has ended by the last one; return the ended flow's number and event."""
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
