"""A rank's part of a plan: its layers, the values that it has, and what moves between it and others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mpidl.nn.layers.workspace import Shape
from mpidl.nn.workspaces import Node, Value, first_takers
from mpidl.parameters.box import Box
from mpidl.partition.plan import Distribution, Part, Plan, boxes_of
from mpidl.partition.transfer import Transfer


class Movement(NamedTuple):
    """A value that moves from those that have it to those that take it, and its gradient back.

    Attributes
    ----------
    source, target : Distribution
    tag : int
        Its number among all movements of the plan.
    departs, arrives : int or None
        Indices of the rank's value before and after; None if it has none.
    first : bool
        Whether nothing else on the rank has given a gradient of the value before it arrives back here.
    """

    source: Distribution
    target: Distribution
    tag: int
    departs: int | None
    arrives: int | None
    first: bool = True

    def transfer(self, samples: int) -> Transfer:
        """Return what moves for a batch of so many samples."""
        return Transfer(boxes_of(self.source, samples), boxes_of(self.target, samples))


class Task(NamedTuple):
    """A step that the rank computes.

    Attributes
    ----------
    step : int
        Index of the step in the plan.
    node : Node
        Its layer, with indices of the rank's values.
    part : Part
        What it gives of the step's value.
    shape : tuple of int
        Shape of one sample of the step's whole value.
    arrivals : list of Movement
        What must arrive first, unless it has before.
    departures : list of Movement
        What then leaves.
    """

    step: int
    node: Node
    part: Part
    shape: Shape
    arrivals: list[Movement]
    departures: list[Movement]


class Local:
    """What a rank does, has and exchanges.

    Parameters
    ----------
    plan : Plan
    rank : int
    shapes : sequence of tuple of int
        The shape of one sample of each step's whole value.
    as_is : set of int
        Indices of the steps that take the network's inputs as they are.

    Attributes
    ----------
    values : list of Value
    tasks : list of Task
    outputs : int or None
        Index of the part of the network's outputs for which the rank computes the loss.
    arrivals : list of Movement
        What must arrive before that.
    whole : int or None
        Index of all outputs for all samples, on rank 0.
    answer : Movement or None
        What brings them there; None if the rank takes no part in it.
    tags : int
        Number of movements in the plan.
    """

    def __init__(self, plan: Plan, rank: int, shapes: Sequence[Shape], as_is: set[int]) -> None:
        self._plan, self._rank, self._shapes = plan, rank, shapes
        self.values: list[Value] = []
        self._inputs: dict[tuple[Part, bool], int] = {}
        self._given = {i + 1: self._new(_part(step.given[rank])) for i, step in enumerate(plan.steps)}
        self._taken: dict[tuple[int, Distribution], int | None] = {}
        self._leaving: dict[int, list[Movement]] = {value: [] for value in self._given}
        found = []
        for i, step in enumerate(plan.steps):
            operands, arrivals = [], []
            for value, distribution in zip(step.operands, step.taken, strict=True):
                index, new = self._take(value, distribution, i in as_is)
                if index is not None:
                    operands.append(index)
                arrivals += [move for move in new if move.arrives is not None]
            found.append((tuple(operands), arrivals))
        self.outputs, new = self._take(len(plan.steps), plan.outputs, False)
        self.arrivals = [move for move in new if move.arrives is not None]
        self.tasks = self._tasks(found)
        first = (Part(Box.whole(shapes[-1])), *(None for _ in range(1, plan.partitions)))
        self.whole, new = self._take(len(plan.steps), first, False)
        self.answer = new[0] if new else None
        self.tags = len(self._taken)

    def _new(self, part: Part | None) -> int | None:
        if part is None:
            return None
        self.values.append(Value(part.box.shape, part.share))
        return len(self.values) - 1

    def _take(self, value: int, distribution: Distribution, as_is: bool) -> tuple[int | None, list[Movement]]:
        """Return the index of what the rank takes of a value, and what has to move for it and didn't before."""
        part, key = _part(distribution[self._rank]), (value, distribution)
        if value == 0:
            return (None if part is None else self._input(part, as_is)), []
        if key in self._taken:
            return self._taken[key], []
        tag, source = len(self._taken), self._plan.steps[value - 1].given
        if rests(source, distribution, self._rank):
            self._taken[key] = self._given[value]
            return self._given[value], []
        self._taken[key] = self._new(part)
        move = Movement(source, distribution, tag, self._given[value], self._taken[key])
        if move.departs is not None:
            self._leaving[value].append(move)
        return self._taken[key], [move]

    def _input(self, part: Part, as_is: bool) -> int:
        key = (part, as_is)
        if key not in self._inputs:
            self._inputs[key] = len(self.values)
            self.values.append(Value(part.box.shape, part.share, part.box, as_is))
        return self._inputs[key]

    def _tasks(self, found: list[tuple[tuple[int, ...], list[Movement]]]) -> list[Task]:
        order: list[tuple[int, ...]] = []
        for i, (operands, _) in enumerate(found):
            order.append(operands)
            order += [(move.departs,) for move in self._leaving[i + 1] if move.departs is not None]
        firsts = iter(first_takers(order))
        tasks = []
        for i, (operands, arrivals) in enumerate(found):
            first = next(firsts)
            leaving = [move._replace(first=next(firsts)[0]) for move in self._leaving[i + 1]]
            step, output = self._plan.steps[i], self._given[i + 1]
            layer, part = step.layers[self._rank], step.given[self._rank]
            if layer is not None and part is not None and output is not None:
                tasks.append(Task(i, Node(layer, operands, output, first), part, self._shapes[i], arrivals, leaving))
        return tasks


def rests(source: Distribution, target: Distribution, rank: int) -> bool:
    """Return whether a rank is to have what it has, and nothing can move to it or from it, for any batch."""
    own, its = _part(source[rank]), _part(target[rank])
    return own == its and not any(
        other != rank and (_meet(own, _part(target[other])) or _meet(_part(source[other]), its))
        for other in range(len(source))
    )


def _part(part: Part | None) -> Part | None:
    return part if part is not None and part.box.size else None


def _meet(one: Part | None, other: Part | None) -> bool:
    """Return whether two parts can have a common element."""
    if one is None or other is None or one.box.intersect(other.box) is None:
        return False
    if one.share is None or other.share is None or one.share[1] != other.share[1]:
        return True
    return one.share[0] == other.share[0]
