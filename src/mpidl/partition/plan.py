"""A plan of a cut model: what each rank of a replica computes, takes, gives and holds. Shapes only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from math import prod
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from mpidl.nn.layers.layer import Layer
from mpidl.parameters.layout import Layout
from mpidl.parameters.ranges import Box, Range, share, split
from mpidl.partition.transfer import Transfer


class TensorPart(NamedTuple):
    """A rank's part of a value, which is an array (samples, *shape).

    Attributes
    ----------
    box : Box
        The part of each sample.
    share : (int, int), optional
        Number and count, if the rank has only a share of the samples: this part of `count` parts as equal as possible.
        All samples by default.
    """

    box: Box
    share: tuple[int, int] | None = None

    def of(self, samples: int) -> Box | None:
        """Return the box of the array (samples, *shape); None if it has no elements."""
        found = Box((self.samples(samples), *self.box.ranges))
        return found if found.size else None

    def samples(self, samples: int) -> Range:
        """Return the part's samples of a minibatch."""
        return Range(0, samples) if self.share is None else share(samples, *self.share)


#: Each rank's part of a value; None for ranks without one.
TensorDistribution = tuple[TensorPart | None, ...]


class CutLayer(Struct, frozen=True):
    """A layer, or a part of its work, divided among the ranks.

    Values are numbered: value 0 is the network's inputs, value i + 1 the output of step i.

    Attributes
    ----------
    name : str
        The layer's name.
    layers : tuple of Layer or None
        The ordinary layer that each rank computes; None for ranks without a part.
    operands : tuple of int
        The values that it takes.
    taken : tuple of TensorDistribution
        The parts of each operand that the ranks take; of a joining layer, a rank takes the operands with a part.
    given : TensorDistribution
        The parts of its value that the ranks compute. Where they overlap, they are summands.
    tensors : tuple of dict of str to Box
        For each rank, the parts of the layer's tensors that it takes. The gradient of an element is the sum over the
        ranks that take it.
    cut : str
        The name of the cut.
    """

    name: str
    layers: tuple[Layer | None, ...]
    operands: tuple[int, ...]
    taken: tuple[TensorDistribution, ...]
    given: TensorDistribution
    tensors: tuple[dict[str, Box], ...]
    cut: str = "samples"

    @property
    def together(self) -> bool:
        """Whether several ranks compute the same statistics, together with the others of `Workspace.group`."""
        layers = [layer for layer in self.layers if layer is not None]
        users = sharers(self.tensors, layers[0].statistics)
        return any(len(ranks) > 1 for _, _, ranks in users)

    def samples(self, rank: int, samples: int) -> int:
        """Return the number of a minibatch's samples for which a rank computes its part."""
        part = self.given[rank]
        return 0 if part is None else part.samples(samples).size

    def operations(self, rank: int, samples: int) -> int:
        """Return the floating-point operations of a rank's products for a minibatch, forward and backward."""
        layer = self.layers[rank]
        return 0 if layer is None else 3 * layer.operations(*self._shapes(rank)) * self.samples(rank, samples)

    def values(self, rank: int, samples: int) -> int:
        """Return the number of elements of operands and outputs of a rank for a minibatch."""
        boxes = boxes_of([each[rank] for each in (self.given, *self.taken)], samples)
        return sum(box.size for box in boxes if box is not None)

    def memory(self, rank: int, samples: int) -> int:
        """Return the elements in a rank's memory: tensors and values, each with its gradient, and buffers."""
        layer = self.layers[rank]
        if layer is None:
            return 0
        buffers = [each for each in layer.buffers(*self._shapes(rank)).values() if each.per_sample]
        tensors = sum(box.size for box in self.tensors[rank].values())
        kept = sum(prod(each.shape) for each in buffers) * self.samples(rank, samples)
        return 2 * (tensors + self.values(rank, samples)) + kept

    def gathered(self) -> np.ndarray:
        """Return the number of elements of shared parameters that each rank (row) sends to each other (column)."""
        total = np.zeros((len(self.given), len(self.given)), np.int64)
        for _, box, ranks in sharers(self.tensors):
            if len(ranks) > 1:
                for rank, own in zip(ranks, split(box.size, len(ranks)), strict=True):
                    total[rank, list(ranks)] += own.size
        np.fill_diagonal(total, 0)
        return total

    def _shapes(self, rank: int) -> list[tuple[int, ...]]:
        parts = [taken[rank] for taken in self.taken]
        return [part.box.shape for part in parts if part is not None]


def sharers(
    tensors: Sequence[Mapping[str, Box]], names: Iterable[str] | None = None
) -> list[tuple[str, Box, tuple[int, ...]]]:
    """Return the parts of a layer's tensors, all or those of some names: name, box and the ranks that take it."""
    found: dict[tuple[str, Box], list[int]] = {}
    for rank, own in enumerate(tensors):
        for name, box in own.items():
            if names is None or name in names:
                found.setdefault((name, box), []).append(rank)
    return [(name, box, tuple(ranks)) for (name, box), ranks in found.items()]


class Moving(NamedTuple):
    """A value that moves from one distribution to another.

    Attributes
    ----------
    name : str
        The layer that takes it; "outputs" for the loss.
    value : int
        Its number, above 0.
    taker : int
        Index of the first step that takes it; the number of steps for the loss.
    """

    name: str
    value: int
    taker: int
    source: TensorDistribution
    target: TensorDistribution

    def elements(self, samples: int) -> np.ndarray:
        """Return the number of elements that each rank (row) sends to each other (column) for a minibatch."""
        return Transfer(boxes_of(self.source, samples), boxes_of(self.target, samples)).moved


class Communication(NamedTuple):
    """A movement between the ranks in a training step, forward; the same number of elements moves back.

    Attributes
    ----------
    name : str
        The layer that takes it; "outputs" for the loss.
    what : str
        "values" or "parameters".
    elements : array (partitions, partitions) of int
        Rows are senders, columns receivers.
    """

    name: str
    what: str
    elements: np.ndarray

    @property
    def sent(self) -> tuple[int, ...]:
        """Number of elements that each rank sends in a training step, forward and backward."""
        return tuple((self.elements.sum(axis=0) + self.elements.sum(axis=1)).tolist())


class Plan(Struct, frozen=True):
    """The work of each rank of a replica, for a network that is cut.

    Attributes
    ----------
    partitions : int
        Number of ranks.
    steps : tuple of CutLayer
        In the order of execution.
    outputs : TensorDistribution
        The ranks' shares of the network's outputs, for the loss.
    layout : Layout
        The tensors in the flat vector: first those of rank 0, then rank 1, ...
    slices : tuple of Range
        Each rank's part of the flat vector.
    stages : int
        Number of stages: runs of consecutive layers, each with its own ranks.
    """

    partitions: int
    steps: tuple[CutLayer, ...]
    outputs: TensorDistribution
    layout: Layout
    slices: tuple[Range, ...]
    stages: int = 1

    def moving(self) -> Iterator[Moving]:
        """Yield each movement of values, once for several steps with the same distribution.

        All ranks have the network's inputs.
        """
        takers = [*((step.name, step.operands, step.taken) for step in self.steps)]
        takers.append(("outputs", (len(self.steps),), (self.outputs,)))
        seen = set()
        for taker, (name, operands, taken) in enumerate(takers):
            for value, target in zip(operands, taken, strict=True):
                if value and (value, target) not in seen:
                    seen.add((value, target))
                    yield Moving(name, value, taker, self.steps[value - 1].given, target)

    def traffic(self, samples: int) -> list[Communication]:
        """Return the movements in a training step with a minibatch: values, then parameters, in order."""
        values = [Communication(each.name, "values", each.elements(samples)) for each in self.moving()]
        parameters = [Communication(step.name, "parameters", step.gathered()) for step in self.steps]
        return [each for each in (*values, *parameters) if each.elements.any()]

    def operations(self, samples: int) -> tuple[int, ...]:
        """Return the floating-point operations of each rank's products in a training step."""
        return tuple(sum(step.operations(rank, samples) for step in self.steps) for rank in range(self.partitions))

    def memory(self, samples: int) -> tuple[int, ...]:
        """Return the maximum number of elements in each rank's memory in a training step."""
        return tuple(sum(step.memory(rank, samples) for step in self.steps) for rank in range(self.partitions))

    @property
    def parameters(self) -> tuple[int, ...]:
        """Number of elements of the flat vector that each rank holds."""
        return tuple(own.size for own in self.slices)


def boxes_of(distribution: Iterable[TensorPart | None], samples: int) -> list[Box | None]:
    """Return each rank's box of the array (samples, *shape)."""
    return [None if part is None else part.of(samples) for part in distribution]


def rounded_otherwise(plan: Plan, clips: bool = False) -> list[str]:
    """Return the names of the layers where a cut network rounds differently from the uncut one.

    Ranks add in another order: forward, summands of a value; backward, gradients of a value or a parameter that several
    ranks take. Libraries may also round a product differently if a rank computes a part of its columns. `clips`: the
    norm of the whole gradient is clipped.
    """
    found = {step.name: None for step in plan.steps if _sums(step) or _cuts_columns(step)}
    for step in plan.steps:
        for value, taken in zip(step.operands, step.taken, strict=True):
            # The network's inputs have no gradient.
            if value and _overlaps(taken):
                found[step.name] = None
    if clips and plan.partitions > 1:
        found["the norm that is clipped"] = None
    return list(found)


def _sums(step: CutLayer) -> bool:
    """Return whether ranks add up a step's values, its statistics, or the gradients of its parameters."""
    shared = any(len(ranks) > 1 for _, _, ranks in sharers(step.tensors))
    return shared or step.together or _overlaps(step.given)


def _cuts_columns(step: CutLayer) -> bool:
    """Return whether ranks compute different columns of a step's products."""
    parts = [part.box.ranges[-1] for part in step.given if part is not None and part.box.size]
    multiplies = any(step.operations(rank, samples=1) for rank in range(len(step.given)))
    return multiplies and len(set(parts)) > 1


def _overlaps(distribution: TensorDistribution) -> bool:
    """Return whether several ranks have the same element, for some number of samples."""
    parts = [part for part in distribution if part is not None and part.box.size]
    return any(
        one.box.intersect(other.box) and not (one.share and other.share and one.share != other.share)
        for one, other in combinations(parts, 2)
    )
