"""Predictions: the seconds that computing and moving take on the ranks of a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import NamedTuple

import numpy as np

from mpidl.nn.model import LayerSummary
from mpidl.partition.local import interior_parts
from mpidl.partition.plan import CutLayer, Moving, Plan, TensorDistribution, boxes_of, sharers
from mpidl.partition.transfer import Transfer


@dataclass(frozen=True)
class Costs:
    """Speeds of a rank and of its links. The defaults are those of a CPU core and of 10 Gbit/s Ethernet.

    Attributes
    ----------
    flops : float
        Floating-point operations per second of a gradient.
    bandwidth, latency : float
        Bytes per second from one rank to another of its node, and seconds for an empty message.
    between_bandwidth, between_latency : float
        The same from node to node. The ranks of a node share its bandwidth.
    memory : int, optional
        Bytes that a rank may use; unlimited by default.
    flops_of : mapping of str to float
        Operations per second of some types of layers.
    parameter_bandwidth : float
        Bytes of parameters per second that a gradient reads twice and writes once, in addition to its operations.
    elements : float
        Input and output elements per second of a layer without products, forward and backward.
    elements_of : mapping of str to float
        Elements per second of some types of layers.
    """

    flops: float = 5e10
    bandwidth: float = 5e9
    latency: float = 2e-6
    between_bandwidth: float = 1.2e9
    between_latency: float = 5e-5
    memory: int | None = None
    flops_of: Mapping[str, float] = field(default_factory=dict)
    parameter_bandwidth: float = inf
    elements: float = 1e9
    elements_of: Mapping[str, float] = field(default_factory=dict)

    def slower(self, factor: float) -> Costs:
        """Return the costs of ranks that compute `factor` times as long, with the same links."""
        return replace(
            self,
            flops=self.flops / factor,
            flops_of={type: speed / factor for type, speed in self.flops_of.items()},
            parameter_bandwidth=self.parameter_bandwidth / factor,
            elements=self.elements / factor,
            elements_of={type: speed / factor for type, speed in self.elements_of.items()},
        )

    def layer(self, type: str, operations: float, nbytes: float, elements: float) -> float:
        """Return the seconds for a gradient of a layer of a type.

        They depend on the operations of its products, forward and backward, and the bytes of its parameters; without
        products, on its input and output elements.
        """
        if operations:
            return operations / self.flops_of.get(type, self.flops) + nbytes / self.parameter_bandwidth
        return elements / self.elements_of.get(type, self.elements)

    def move(self, nbytes: float, messages: int = 1, between: bool = False) -> float:
        """Return the seconds for a rank to send messages with these bytes in total, within a node or between two."""
        if between:
            return messages * self.between_latency + nbytes / self.between_bandwidth
        return messages * self.latency + nbytes / self.bandwidth

    def gradient(self, layers: Iterable[LayerSummary], samples: int, itemsize: int = 4) -> float:
        """Return the seconds for a gradient of a number of samples.

        A layer's operations count three times: forward, and for the gradients of its weights and inputs, except the
        inputs of the first layer.
        """
        found, taken = 0.0, 0
        for number, layer in enumerate(layers):
            given = prod(layer.shape) * samples
            operations = (3 if number else 2) * layer.operations * samples
            found += self.layer(layer.type, operations, layer.parameters * itemsize, taken + given)
            taken = given
        return found


#: The parts of a layer's work: values, gradients of its inputs, and of its parameters.
FORWARD, INPUTS, WEIGHTS = "forward", "inputs", "weights"


class Basis(NamedTuple):
    """The assumptions of a prediction: batch, speeds, and nodes.

    Attributes
    ----------
    samples : int
        Samples of a minibatch.
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
    """Return the seconds of a training step, one layer after the other.

    Computation hides messages between nodes: that of rows that don't need a value hides the value, and that of weights'
    gradients its gradient. Within a node, messages need its processors.

    Stages overlap: a minibatch takes as long as all micro-batches of the slowest stage and one of each other stage
    (Huang et al. 2019, GPipe, section 2.3; 1F1B takes as long).
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


def _first_rank(step: CutLayer) -> int:
    return next(rank for rank, layer in enumerate(step.layers) if layer is not None)


def work_seconds(step: CutLayer, basis: Basis, first: bool = False) -> float:
    """Return the seconds to compute a step, forward and backward, and to gather parameters that ranks share.

    `first`: the step takes the network's inputs, which need no gradient.
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


def compute_seconds(step: CutLayer, basis: Basis, first: bool = False) -> list[float]:
    """Return the seconds of each rank's layer, forward and backward, without gathering parameters."""
    return [_compute(step, rank, basis, first) for rank in range(len(step.given))]


def part_of(step: CutLayer, part: str) -> float:
    """Return the fraction of a layer's seconds for `FORWARD`, `INPUTS` or `WEIGHTS`."""
    if not any(step.operands):
        # The network's inputs need no gradient.
        return 0.0 if part == INPUTS else 1 / 2
    if not step.operations(_first_rank(step), 1):
        return {FORWARD: 1 / 3, INPUTS: 2 / 3, WEIGHTS: 0.0}[part]
    return 1 / 3


def _hidden(plan: Plan, moving: Moving, basis: Basis) -> float:
    """Return the seconds of a value's movement between nodes, and back, that computation hides."""
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


def _compute(step: CutLayer, rank: int, basis: Basis, first: bool) -> float:
    layer, samples = step.layers[rank], basis.samples
    if layer is None or not step.samples(rank, samples):
        return 0.0
    operations = step.operations(rank, samples) * (2 / 3 if first else 1)
    nbytes = sum(box.size for box in step.tensors[rank].values()) * basis.itemsize
    return basis.costs.layer(layer.type, operations, nbytes, step.values(rank, samples))


def movement_seconds(source: TensorDistribution, target: TensorDistribution, basis: Basis) -> float:
    """Return the seconds to move a value from one distribution to another, and its gradient back."""
    elements = Transfer(boxes_of(source, basis.samples), boxes_of(target, basis.samples)).moved
    return 2 * sum(_moving(elements, elements > 0, basis))


def _moving(elements: np.ndarray, messages: np.ndarray, basis: Basis) -> tuple[float, float]:
    """Return the seconds of messages between ranks (ranks, ranks), within nodes and between nodes.

    Each rank sends one message after the other, and the busiest one counts. All ranks of a node share its network card.
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
            # Sum the rows and columns of a node's ranks.
            by_node = np.zeros((count, count))
            np.add.at(by_node, (nodes[:, None], nodes), own)
            own = by_node
        busiest = max(own.sum(axis=0).max(), own.sum(axis=1).max())
        most = max(sent.sum(axis=0).max(), sent.sum(axis=1).max())
        seconds[between] = basis.costs.move(float(busiest) * basis.itemsize, int(most), between)
    return seconds[False], seconds[True]


def _spans(ranks: int, basis: Basis) -> bool:
    return ranks > (basis.ranks_per_node or ranks)
