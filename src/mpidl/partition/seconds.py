"""The seconds that a plan's steps take."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mpidl.partition.costs import Costs
from mpidl.partition.interior import interior_parts
from mpidl.partition.plan import Distribution, Moving, Plan, Step, boxes_of, sharers
from mpidl.partition.transfer import Transfer

#: The parts of a layer's work: values, gradients of its inputs, and of its parameters.
FORWARD, INPUTS, WEIGHTS = "forward", "inputs", "weights"


class Basis(NamedTuple):
    """What the seconds of a step of training depend on, besides the plan.

    Attributes
    ----------
    samples : int
        Samples of a minibatch.
    costs : Costs
        What work and movement take.
    itemsize : int
        Bytes of an element.
    ranks_per_node : int, optional
        Number of consecutive ranks of the replica on each node; all of them by default.
    """

    samples: int
    costs: Costs
    itemsize: int
    ranks_per_node: int | None = None


def plan_seconds(plan: Plan, basis: Basis, micro_batches: int = 1) -> float:
    """Return the seconds of a step of training, one layer after the other.

    What travels between nodes while a rank computes is hidden: a value while the rows are computed that don't need it,
    its gradient while those of weights are. Within a node, messages are the work of its processors.

    Stages compute micro-batches at the same time: the slowest stage computes all, and each of the others one more than
    it hides (Huang et al. 2019, GPipe, section 2.3; one forward, one backward takes as long).

    Parameters
    ----------
    plan : Plan
    basis : Basis
        Its samples are those of the minibatch.
    micro_batches : int
        Into how many parts stages divide the minibatch.
    """
    of_one = basis._replace(samples=-(-basis.samples // micro_batches))
    stages, ranks = [0.0] * plan.stages, plan.partitions // plan.stages
    numbers = [_first_rank(step) // ranks for step in plan.steps]
    for number, step in zip(numbers, plan.steps, strict=True):
        stages[number] += work_seconds(step, of_one, first=not any(step.operands))
    for each in plan.moving():
        seconds = movement_seconds(each.source, each.target, of_one) - _hidden(plan, each, of_one)
        stages[(*numbers, -1)[each.taker]] += seconds
    return sum(stages) + (micro_batches - 1) * max(stages)


def _first_rank(step: Step) -> int:
    return next(rank for rank, layer in enumerate(step.layers) if layer is not None)


def work_seconds(step: Step, basis: Basis, first: bool = False) -> float:
    """Return the seconds of computing a step, forward and backward, and of gathering parameters that ranks share.

    Parameters
    ----------
    step : Step
    basis : Basis
    first : bool
        Whether it takes the network's inputs, which need no gradient.
    """
    costs, ranks = basis.costs, len(step.given)
    elements, messages = np.zeros((ranks, ranks)), np.zeros((ranks, ranks), int)
    for _, box, users in sharers(step.tensors):
        if len(users) > 1:
            pairs = np.ix_(users, users)
            elements[pairs] += box.size / len(users)
            messages[pairs] += 1
    seconds = max(compute_seconds(step, basis, first)) + 2 * sum(_moving(elements, messages, basis))
    if step.together:
        # Two sums forward, one backward.
        partners = sum(layer is not None for layer in step.layers) - 1
        seconds += 3 * costs.move(0, partners, _spans(ranks, basis))
    return seconds


def compute_seconds(step: Step, basis: Basis, first: bool = False) -> list[float]:
    """Return the seconds of each rank's layer, forward and backward; see `work_seconds`."""
    return [_compute(step, rank, basis, first) for rank in range(len(step.given))]


def part_of(step: Step, part: str) -> float:
    """Return which part of a layer's seconds a part of its work takes."""
    if not any(step.operands):
        # The network's inputs need no gradient.
        return 0.0 if part == INPUTS else 1 / 2
    if not step.operations(_first_rank(step), 1):
        return {FORWARD: 1 / 3, INPUTS: 2 / 3, WEIGHTS: 0.0}[part]
    return 1 / 3


def _hidden(plan: Plan, moving: Moving, basis: Basis) -> float:
    """Return for how many seconds nobody waits of those in which a value moves from node to node, and back."""
    if not _spans(plan.partitions, basis) or moving.taker == len(plan.steps):
        return 0.0
    elements = moving.elements(basis.samples)
    _, travels = _moving(elements, elements > 0, basis)
    if not travels:
        return 0.0
    step, takers = plan.steps[moving.taker], np.flatnonzero(elements.any(axis=0))
    computes, interior = compute_seconds(step, basis), interior_parts(plan, moving, basis.samples)
    forward = min(interior[rank] * computes[rank] for rank in takers) * part_of(step, FORWARD)
    back = min(computes[rank] for rank in takers) * part_of(step, WEIGHTS)
    return min(travels, forward) + min(travels, back)


def _compute(step: Step, rank: int, basis: Basis, first: bool) -> float:
    layer, samples = step.layers[rank], basis.samples
    if layer is None or not step.samples(rank, samples):
        return 0.0
    operations = step.operations(rank, samples) * (2 / 3 if first else 1)
    nbytes = sum(box.size for box in step.tensors[rank].values()) * basis.itemsize
    return basis.costs.layer(layer.type, operations, nbytes, step.values(rank, samples))


def movement_seconds(source: Distribution, target: Distribution, basis: Basis) -> float:
    """Return the seconds in which a value gets from one distribution to another, and its gradient back."""
    elements = Transfer(boxes_of(source, basis.samples), boxes_of(target, basis.samples)).moved
    return 2 * sum(_moving(elements, elements > 0, basis))


def _moving(elements: np.ndarray, messages: np.ndarray, basis: Basis) -> tuple[float, float]:
    """Return the seconds in which elements get from rank to rank (ranks, ranks); their diagonals don't count.

    First those within nodes, then those between them.

    Each rank sends one message after the other, and within a node and between nodes the busiest counts. All ranks of a
    node share its card.
    """
    ranks = len(elements)
    nodes = np.arange(ranks) // (basis.ranks_per_node or ranks)
    count = nodes[-1] + 1
    seconds = [0.0, 0.0]
    for between in (False, True):
        pairs = (nodes[:, None] != nodes) if between else (nodes[:, None] == nodes) & ~np.eye(ranks, dtype=bool)
        own, sent = elements * pairs, messages * pairs
        if not sent.any():
            continue
        if between:
            # Rows and columns of a node's ranks, together.
            by_node = np.zeros((count, count))
            np.add.at(by_node, (nodes[:, None], nodes), own)
            own = by_node
        busiest = max(own.sum(axis=0).max(), own.sum(axis=1).max())
        most = max(sent.sum(axis=0).max(), sent.sum(axis=1).max())
        seconds[between] = basis.costs.move(float(busiest) * basis.itemsize, int(most), between)
    return seconds[False], seconds[True]


def _spans(ranks: int, basis: Basis) -> bool:
    return ranks > (basis.ranks_per_node or ranks)
