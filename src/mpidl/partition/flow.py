"""What the ranks of a cut model do in a step of training, in order: compute, send, wait for others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mpidl.partition.plan import Plan
from mpidl.partition.seconds import Basis, compute_seconds

#: Part of a layer's seconds that the forward pass takes, if its inputs need a gradient and if they don't.
FORWARD, FORWARD_OF_FIRST = 1 / 3, 1 / 2


class Compute(NamedTuple):
    """Compute for so many seconds."""

    seconds: float


class Send(NamedTuple):
    """Begin to send so many bytes to a rank; messages between two ranks differ by their tags."""

    to: int
    tag: int
    nbytes: float


class Receive(NamedTuple):
    """Wait for a message of a rank."""

    source: int
    tag: int


#: What a rank does, in order.
Flow = tuple[Compute | Send | Receive, ...]


def flows(plan: Plan, basis: Basis) -> list[Flow]:
    """Return what each rank does, as `Program` does it: a value leaves once it is there, and is waited for when needed.

    Sums of statistics are left out.
    """
    return _Flows(plan, basis).of_ranks()


class _Flows:
    def __init__(self, plan: Plan, basis: Basis) -> None:
        self._plan, self._itemsize = plan, basis.itemsize
        self._ranks: list[list[Compute | Send | Receive]] = [[] for _ in range(plan.partitions)]
        self._seconds = [compute_seconds(step, basis, not any(step.operands)) for step in plan.steps]
        values = [(each, each.elements(basis.samples)) for each in plan.moving()]
        # Each movement has a tag, and its way back the next one.
        self._leaving = [
            [(2 * tag, moved) for tag, (each, moved) in enumerate(values) if each.value == number + 1]
            for number in range(len(plan.steps))
        ]
        self._arriving = [
            [(2 * tag, moved) for tag, (each, moved) in enumerate(values) if each.taker == number]
            for number in range(len(plan.steps) + 1)
        ]
        self._shared = [(2 * tag, step.gathered()) for tag, step in enumerate(plan.steps, len(values))]

    def of_ranks(self) -> list[Flow]:
        for movement in self._shared:
            self._send(*movement)
        for number, gathered in enumerate(self._shared):
            for movement in (gathered, *self._arriving[number]):
                self._receive(*movement)
            self._compute(number, forward=True)
            for movement in self._leaving[number]:
                self._send(*movement)
        for movement in self._arriving[-1]:
            self._receive(*movement)
        for movement in self._arriving[-1]:
            self._send(*_back(*movement))
        for number in reversed(range(len(self._shared))):
            for movement in reversed(self._leaving[number]):
                self._receive(*_back(*movement))
            self._compute(number, forward=False)
            for movement in (*self._arriving[number], self._shared[number]):
                self._send(*_back(*movement))
        for movement in reversed(self._shared):
            self._receive(*_back(*movement))
        return [tuple(own) for own in self._ranks]

    def _compute(self, number: int, forward: bool) -> None:
        first = not any(self._plan.steps[number].operands)
        part = FORWARD_OF_FIRST if first else FORWARD
        for own, seconds in zip(self._ranks, self._seconds[number], strict=True):
            if seconds:
                own.append(Compute(seconds * (part if forward else 1 - part)))

    def _send(self, tag: int, elements: np.ndarray) -> None:
        for rank, to in np.argwhere(elements).tolist():
            self._ranks[rank].append(Send(to, tag, float(elements[rank, to]) * self._itemsize))

    def _receive(self, tag: int, elements: np.ndarray) -> None:
        for source, rank in np.argwhere(elements).tolist():
            self._ranks[rank].append(Receive(source, tag))


def _back(tag: int, elements: np.ndarray) -> tuple[int, np.ndarray]:
    """Return the way back of a movement."""
    return tag + 1, elements.T
