"""Max-min fair rates of flows between nodes, each of which has one network card."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpidl.jit import jit

#: Directions of a card.
OUT, IN = 0, 1


@jit
def fair_shares(
    flows: int, ends: Any, capacities: Any, rates: Any, spare: Any, crossing: Any, places: Any, cards: Any
) -> None:
    """Set the rates of flows to the max-min fair ones: none can be raised without lowering one that isn't larger.

    By progressive filling (Bertsekas and Gallager, Data Networks, 1992, section 6.5.2): all rates grow alike until a
    card is full, whose flows then keep their rates while the others go on growing. Cards that are full at the same
    rate take one step together.

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
    places : array, shape (2 flows,), int64
        Overwritten with the flows of one card after another.
    cards : array, shape (3, 2 nodes + 1), int64
        Overwritten with where the flows of a card begin and end, and the cards that aren't full.
    """
    nodes = capacities.shape[1]
    begins, stops, growing = cards[0], cards[1], cards[2]
    _list_flows(flows, ends, nodes, places, begins, stops)
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
        # Cards that are equally full may differ by rounding. They are put behind the others.
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
            for flow in places[begins[card] : stops[card]]:
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
def _list_flows(flows: int, ends: Any, nodes: int, places: Any, begins: Any, stops: Any) -> None:
    """List the flows of each card; begins[card] and stops[card] are where they begin and end in `places`."""
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
            places[stops[card]] = flow
            stops[card] += 1


@jit
def next_ends(flows: int, left: Any, rates: Any, count: int, waits: Any) -> tuple[int, float]:
    """Return the flow that is the `count`-th to end at these rates, and the seconds until then.

    `waits`, an array of float64 of shape (flows,), is overwritten.
    """
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
    """Let time pass: lower the bytes `left` of each flow.

    Parameters
    ----------
    flows : int
    left, rates, least : arrays, shape (flows,), float64
        Bytes that each flow lacks, its bytes per second, and the bytes below which it has ended.
    seconds : float
    ended : array, shape (flows,), int64
        Overwritten with the flows that have ended, in falling order.

    Returns
    -------
    int
        Number of flows that have ended.
    """
    count = 0
    for flow in range(flows - 1, -1, -1):
        left[flow] -= rates[flow] * seconds
        if left[flow] <= least[flow]:
            ended[count] = flow
            count += 1
    return count
