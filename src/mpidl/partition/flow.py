"""The actions of the ranks of a cut model in a training step, in order: compute, send, receive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpidl.partition.costs import FORWARD, INPUTS, WEIGHTS, Basis, compute_seconds, part_of
from mpidl.partition.local import interior_parts
from mpidl.partition.plan import CutLayer, Plan, sharers


class Compute(NamedTuple):
    """Compute for a time."""

    seconds: float


class Send(NamedTuple):
    """Begin to send bytes to a rank; messages between two ranks differ by their tags."""

    to: int
    tag: int
    nbytes: float


class Receive(NamedTuple):
    """Wait for a message from a rank."""

    source: int
    tag: int


#: The actions of a rank, in order.
Flow = tuple[Compute | Send | Receive, ...]


def flows(plan: Plan, basis: Basis) -> list[Flow]:
    """Return each rank's actions, in the order of `Program`: a value is sent once computed, and received when needed.

    Ranks that share statistics sum them, in float64: twice forward, and once backward, with twice the elements.
    """
    return _Flows(plan, basis).of_ranks()


class _Flows:
    def __init__(self, plan: Plan, basis: Basis) -> None:
        self._plan, self._itemsize = plan, basis.itemsize
        self._ranks: list[list[Compute | Send | Receive]] = [[] for _ in range(plan.partitions)]
        self._seconds = [compute_seconds(step, basis, not any(step.operands)) for step in plan.steps]
        values = [(each, each.elements(basis.samples)) for each in plan.moving()]
        # Each movement has a tag, and its gradient the next one.
        self._leaving = [
            [(2 * tag, moved) for tag, (each, moved) in enumerate(values) if each.value == number + 1]
            for number in range(len(plan.steps))
        ]
        self._arriving = [
            [(2 * tag, moved) for tag, (each, moved) in enumerate(values) if each.taker == number]
            for number in range(len(plan.steps) + 1)
        ]
        taken = {each.taker: interior_parts(plan, each, basis.samples) for each, _ in values}
        self._interior = [taken.get(number, [0.0] * plan.partitions) for number in range(len(plan.steps))]
        self._shared = [(2 * tag, step.gathered()) for tag, step in enumerate(plan.steps, len(values))]
        first = 2 * (len(values) + len(plan.steps))
        sums = [_summed(step) * 8 / basis.itemsize for step in plan.steps]
        self._summed = [(first + 3 * number, elements) for number, elements in enumerate(sums)]

    def of_ranks(self) -> list[Flow]:
        for movement in self._shared:
            self._send(*movement)
        for number, gathered in enumerate(self._shared):
            self._receive(*gathered)
            self._compute(number, FORWARD, self._interior[number])
            for movement in self._arriving[number]:
                self._receive(*movement)
            tag, summed = self._summed[number]
            for each in (tag, tag + 1):
                self._sum(each, summed)
            self._compute(number, FORWARD, [1 - part for part in self._interior[number]])
            for movement in self._leaving[number]:
                self._send(*movement)
        for movement in self._arriving[-1]:
            self._receive(*movement)
        for movement in self._arriving[-1]:
            self._send(*_back(*movement))
        for number in reversed(range(len(self._shared))):
            for movement in reversed(self._leaving[number]):
                self._receive(*_back(*movement))
            tag, summed = self._summed[number]
            self._sum(tag + 2, 2 * summed)
            self._compute(number, INPUTS)
            for movement in self._arriving[number]:
                self._send(*_back(*movement))
            self._compute(number, WEIGHTS)
            self._send(*_back(*self._shared[number]))
        for movement in reversed(self._shared):
            self._receive(*_back(*movement))
        return [tuple(own) for own in self._ranks]

    def _compute(self, number: int, part: str, of_it: Sequence[float] | None = None) -> None:
        whole = part_of(self._plan.steps[number], part)
        for rank, own in enumerate(self._ranks):
            seconds = self._seconds[number][rank] * whole * (1.0 if of_it is None else of_it[rank])
            if seconds:
                own.append(Compute(seconds))

    def _send(self, tag: int, elements: np.ndarray) -> None:
        for rank, to in np.argwhere(elements).tolist():
            self._ranks[rank].append(Send(to, tag, float(elements[rank, to]) * self._itemsize))

    def _sum(self, tag: int, elements: np.ndarray) -> None:
        self._send(tag, elements)
        self._receive(tag, elements)

    def _receive(self, tag: int, elements: np.ndarray) -> None:
        for source, rank in np.argwhere(elements).tolist():
            self._ranks[rank].append(Receive(source, tag))


def _summed(step: CutLayer) -> np.ndarray:
    """Return the number of elements of a statistic that each rank sends to each other (partitions, partitions)."""
    found = np.zeros((len(step.given), len(step.given)))
    statistics = next(layer.statistics for layer in step.layers if layer is not None)[:1]
    for _, box, ranks in sharers(step.tensors, statistics):
        found[np.ix_(ranks, ranks)] = box.size
    np.fill_diagonal(found, 0)
    return found


def _back(tag: int, elements: np.ndarray) -> tuple[int, np.ndarray]:
    """Return the movement of the gradient."""
    return tag + 1, elements.T
