"""Max-min fair rates of flows between nodes, each of which has one network card."""

from __future__ import annotations

from typing import Any

from mpidl.jit import jit

#: Directions of a card.
OUT, IN = 0, 1


@jit
def fair_shares(flows: int, ends: Any, capacities: Any, rates: Any, spare: Any, crossing: Any, growing: Any) -> None:
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
    growing : array, shape (flows,), int64
        Overwritten.
    """
    for flow in range(flows):
        growing[flow] = flow
        for way in (OUT, IN):
            spare[way, ends[way, flow]] = capacities[way, ends[way, flow]]
            crossing[way, ends[way, flow]] = 0.0
    for flow in range(flows):
        for way in (OUT, IN):
            crossing[way, ends[way, flow]] += 1.0
    left = flows
    while left:
        share = float("inf")
        for place in range(left):
            sender, receiver = ends[OUT, growing[place]], ends[IN, growing[place]]
            share = min(share, spare[OUT, sender] / crossing[OUT, sender], spare[IN, receiver] / crossing[IN, receiver])
        # Cards that are equally full may differ by rounding.
        full = share * (1 + 1e-9)
        for place in range(left):
            flow = growing[place]
            sender, receiver = ends[OUT, flow], ends[IN, flow]
            level = min(spare[OUT, sender] / crossing[OUT, sender], spare[IN, receiver] / crossing[IN, receiver])
            rates[flow] = share if level <= full else 0.0
        still = 0
        for place in range(left):
            flow = growing[place]
            if rates[flow]:
                for way in (OUT, IN):
                    spare[way, ends[way, flow]] -= share
                    crossing[way, ends[way, flow]] -= 1.0
            else:
                growing[still] = flow
                still += 1
        left = still


@jit
def next_end(flows: int, left: Any, rates: Any) -> tuple[int, float]:
    """Return the flow that ends first at these rates, and the seconds until then."""
    first, wait = -1, float("inf")
    for flow in range(flows):
        if left[flow] < wait * rates[flow]:
            first, wait = flow, left[flow] / rates[flow]
    return first, wait


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
