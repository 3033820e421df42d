"""A rank's part of a plan: its layers, its values, and what moves between it and others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mpidl.nn.graph import Node, Value, first_takers
from mpidl.nn.layers.layer import ByRows, Layer
from mpidl.nn.layers.workspace import Shape
from mpidl.parameters.ranges import Box, Range
from mpidl.partition.plan import Moving, Plan, TensorDistribution, TensorPart, boxes_of
from mpidl.partition.transfer import Transfer


class Movement(NamedTuple):
    """A value that moves from one distribution to another, and its gradient back.

    Attributes
    ----------
    tag : int
        Its number among all movements of the plan.
    departs, arrives : int or None
        Indices of the rank's value before and after; None if it has none.
    first : bool
        Whether the returning gradient is the first one of the rank's value.
    """

    source: TensorDistribution
    target: TensorDistribution
    tag: int
    departs: int | None
    arrives: int | None
    first: bool = True

    def transfer(self, samples: int) -> Transfer:
        """Return the transfer for a batch of this number of samples."""
        return Transfer(boxes_of(self.source, samples), boxes_of(self.target, samples))


class LocalStep(NamedTuple):
    """A step that the rank computes.

    Attributes
    ----------
    step : int
        Index of the step in the plan.
    node : Node
        Its layer, with indices of the rank's values.
    part : TensorPart
        The part of the step's value that it computes.
    shape : tuple of int
        Shape of one sample of the step's whole value.
    arrivals : list of Movement
        New movements that must arrive first.
    departures : list of Movement
        Movements that start afterwards.
    """

    step: int
    node: Node
    part: TensorPart
    shape: Shape
    arrivals: list[Movement]
    departures: list[Movement]


class Local:
    """The tasks, values and movements of a rank.

    Parameters
    ----------
    shapes : sequence of tuple of int
        The shape of one sample of each step's whole value.
    as_is : set of int
        Indices of the steps that take the network's inputs unconverted.

    Attributes
    ----------
    values : list of Value
    tasks : list of LocalStep
    outputs : int or None
        Index of the part of the network's outputs for which the rank computes the loss.
    arrivals : list of Movement
        Movements that must arrive before the loss.
    whole : int or None
        Index of all outputs for all samples, on rank 0.
    answer : Movement or None
        Brings all outputs to rank 0; None if the rank takes no part in it.
    tags : int
        Number of movements in the plan.
    """

    def __init__(self, plan: Plan, rank: int, shapes: Sequence[Shape], as_is: set[int]) -> None:
        self._plan, self._rank, self._shapes = plan, rank, shapes
        self.values: list[Value] = []
        self._inputs: dict[tuple[TensorPart, bool], int] = {}
        self._given = {i + 1: self._new(_part(step.given[rank])) for i, step in enumerate(plan.steps)}
        self._taken: dict[tuple[int, TensorDistribution], int | None] = {}
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
        first = (TensorPart(Box.whole(shapes[-1])), *(None for _ in range(1, plan.partitions)))
        self.whole, new = self._take(len(plan.steps), first, False)
        self.answer = new[0] if new else None
        self.tags = len(self._taken)

    def _new(self, part: TensorPart | None) -> int | None:
        if part is None:
            return None
        self.values.append(Value(part.box.shape, part.share))
        return len(self.values) - 1

    def _take(self, value: int, distribution: TensorDistribution, as_is: bool) -> tuple[int | None, list[Movement]]:
        """Return the index of the rank's part of a value in a distribution, and the new movements for it."""
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

    def _input(self, part: TensorPart, as_is: bool) -> int:
        key = (part, as_is)
        if key not in self._inputs:
            self._inputs[key] = len(self.values)
            self.values.append(Value(part.box.shape, part.share, part.box, as_is))
        return self._inputs[key]

    def _tasks(self, found: list[tuple[tuple[int, ...], list[Movement]]]) -> list[LocalStep]:
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
                node = Node(layer, operands, output, first)
                tasks.append(LocalStep(i, node, part, self._shapes[i], arrivals, leaving))
        return tasks


def rests(source: TensorDistribution, target: TensorDistribution, rank: int) -> bool:
    """Return whether a rank's part stays the same, and nothing can move to it or from it, for any batch."""
    own, its = _part(source[rank]), _part(target[rank])
    return own == its and not any(
        other != rank and (_meet(own, _part(target[other])) or _meet(_part(source[other]), its))
        for other in range(len(source))
    )


def _part(part: TensorPart | None) -> TensorPart | None:
    return part if part is not None and part.box.size else None


def _meet(one: TensorPart | None, other: TensorPart | None) -> bool:
    """Return whether two parts can have a common element."""
    if one is None or other is None or one.box.intersect(other.box) is None:
        return False
    if one.share is None or other.share is None or one.share[1] != other.share[1]:
        return True
    return one.share[0] == other.share[0]


#: Minimum operations of rows that are computed separately, about a third of a millisecond. Separate computation costs
#: up to 50 microseconds, as much as a message between nodes.
WORTH = 20_000_000


def interior(layer: Layer, transfer: Transfer, rank: int) -> Range:
    """Return the rows of a rank's outputs that don't depend on other ranks, given the transfer of its layer's inputs.

    Empty if there are too few, if the layer computes all its rows at once, or if nothing comes from other ranks.
    """
    nothing = Range(0, 0)
    if not isinstance(layer, ByRows) or len(transfer.target[rank]) != 1 or not transfer.received(rank):
        return nothing
    (whole,), (summands, _) = transfer.target[rank], transfer.summands(rank)
    if any(each.added for each in summands):
        return nothing
    found = nothing
    for box in (box for each in summands if each.rank == rank for box in each.copied):
        # Rows are the first axis of a sample.
        if all(own == its for axis, (own, its) in enumerate(zip(box.ranges, whole.ranges, strict=True)) if axis != 1):
            rows = box.ranges[1].shift(-whole.ranges[1].start)
            found = max(found, layer.rows_from(rows, whole.shape[1:]), key=lambda some: some.size)
    shape = whole.shape[1:]
    operations = layer.operations(shape) * whole.shape[0] * found.size if found.size else 0
    return found if operations >= WORTH * layer.output_shape(shape)[0] else nothing


def interior_parts(plan: Plan, moving: Moving, samples: int) -> list[float]:
    """Return the fraction of its outputs that each rank computes while a value moves to the layer that takes it."""
    found = [0.0] * plan.partitions
    if moving.taker == len(plan.steps):
        return found
    step = plan.steps[moving.taker]
    transfer = Transfer(boxes_of(moving.source, samples), boxes_of(moving.target, samples))
    for rank, (layer, given) in enumerate(zip(step.layers, step.given, strict=True)):
        if layer is not None and given is not None and len(given.box.shape) > 1:
            found[rank] = interior(layer, transfer, rank).size / max(1, given.box.shape[0])
    return found
