"""A plan of a cut model: what each rank of a replica computes, takes, gives and holds. Shapes only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from mpidl.nn.layers.layer import Layer
from mpidl.parameters.box import Box
from mpidl.parameters.layout import Layout
from mpidl.parameters.ranges import Range, share, split
from mpidl.partition.transfer import Transfer


class Part(NamedTuple):
    """What a rank has of a value, which is an array (samples, *shape).

    Attributes
    ----------
    box : Box
        The part of each sample.
    share : (int, int), optional
        Number and count, if the rank has a share of the samples only: the part with this number of so many parts as
        equal as possible. All samples by default.
    """

    box: Box
    share: tuple[int, int] | None = None

    def of(self, samples: int) -> Box | None:
        """Return the box of the array (samples, *shape); None if it has no elements."""
        found = Box((self.samples(samples), *self.box.ranges))
        return found if found.size else None

    def samples(self, samples: int) -> Range:
        """Return the samples of a minibatch that the part is of."""
        return Range(0, samples) if self.share is None else share(samples, *self.share)


#: What each rank of a replica has of a value; None for those that have nothing.
Distribution = tuple[Part | None, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """A layer, or a part of its work, as the ranks carry it out.

    Values are numbered: value 0 is the network's inputs, value i + 1 what step i gives.

    Attributes
    ----------
    name : str
        The layer's name.
    layers : tuple of Layer or None
        What each rank computes, an ordinary layer; None for ranks without a part.
    operands : tuple of int
        The values that it takes.
    taken : tuple of Distribution
        What the ranks take of each of them; of a joining layer, a rank takes those operands of which it has a part.
    given : Distribution
        What the ranks give of its value. Where their parts overlap, they are summands.
    tensors : tuple of dict of str to Box
        For each rank, the part that its layer takes of each of the layer's tensors. An element that several ranks take
        has the sum of their gradients.
    how : str
        How the layer is cut.
    """

    name: str
    layers: tuple[Layer | None, ...]
    operands: tuple[int, ...]
    taken: tuple[Distribution, ...]
    given: Distribution
    tensors: tuple[dict[str, Box], ...]
    how: str = "samples"

    @property
    def together(self) -> bool:
        """Whether the layers have statistics of all ranks' values: `Workspace.group` is those that have samples."""
        layers = [layer for layer in self.layers if layer is not None]
        users = sharers(self.tensors, layers[0].statistics)
        return any(len(ranks) > 1 for _, _, ranks in users)

    def samples(self, rank: int, samples: int) -> int:
        """Return of how many samples of a minibatch a rank computes its part."""
        part = self.given[rank]
        return 0 if part is None else part.samples(samples).size

    def operations(self, rank: int, samples: int) -> int:
        """Return the floating-point operations of a rank's products for a minibatch, forward and backward."""
        layer = self.layers[rank]
        return 0 if layer is None else 3 * layer.operations(*self._shapes(rank)) * self.samples(rank, samples)

    def values(self, rank: int, samples: int) -> int:
        """Return how many elements of operands and outputs a rank takes and gives, for a minibatch."""
        boxes = boxes_of([each[rank] for each in (self.given, *self.taken)], samples)
        return sum(box.size for box in boxes if box is not None)

    def memory(self, rank: int, samples: int) -> int:
        """Return for how many elements a rank needs memory: tensors and values, each with its gradient, and buffers."""
        layer = self.layers[rank]
        if layer is None:
            return 0
        buffers = [each for each in layer.buffers(*self._shapes(rank)).values() if each.per_sample]
        tensors = sum(box.size for box in self.tensors[rank].values())
        kept = sum(prod(each.shape) for each in buffers) * self.samples(rank, samples)
        return 2 * (tensors + self.values(rank, samples)) + kept

    def gathered(self) -> np.ndarray:
        """Return how many elements of parameters each rank sends to each other that shares them; row: the sender."""
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
    """Return the parts of a layer's tensors that ranks take: name, box and the ranks that take it.

    Parameters
    ----------
    tensors
        See `Step`.
    names
        The tensors; all by default.
    """
    found: dict[tuple[str, Box], list[int]] = {}
    for rank, own in enumerate(tensors):
        for name, box in own.items():
            if names is None or name in names:
                found.setdefault((name, box), []).append(rank)
    return [(name, box, tuple(ranks)) for (name, box), ranks in found.items()]


class Moving(NamedTuple):
    """A value that gets from one distribution to another.

    Attributes
    ----------
    name : str
        The layer that takes it; "outputs" for the loss.
    value : int
        Its number, which is not 0.
    taker : int
        Index of the step that takes it first; the number of steps for the loss.
    source, target : Distribution
    """

    name: str
    value: int
    taker: int
    source: Distribution
    target: Distribution

    def elements(self, samples: int) -> np.ndarray:
        """Return how many elements move for a minibatch (partitions, partitions); row: the sender."""
        return Transfer(boxes_of(self.source, samples), boxes_of(self.target, samples)).moved


class Traffic(NamedTuple):
    """What moves between the ranks at one place of a step of training, forward; backward, as much goes back.

    Attributes
    ----------
    name : str
        The layer that takes it; "outputs" for the loss.
    what : str
        "values" or "parameters".
    elements : array (partitions, partitions) of int
        Row: the sender, column: the receiver.
    """

    name: str
    what: str
    elements: np.ndarray

    @property
    def sent(self) -> tuple[int, ...]:
        """How many elements each rank sends in a step of training: forward, and backward what it got."""
        return tuple((self.elements.sum(axis=0) + self.elements.sum(axis=1)).tolist())


@dataclass(frozen=True, slots=True)
class Plan:
    """What each rank of a replica does, for a network that is cut.

    Attributes
    ----------
    partitions : int
        Number of ranks.
    steps : tuple of Step
        In the order in which they are carried out.
    outputs : Distribution
        What each rank has of the network's outputs for the loss: a share of the samples, or nothing.
    layout : Layout
        The tensors in the flat vector: first what rank 0 holds, then rank 1, ...
    slices : tuple of Range
        What each rank holds of the flat vector.
    stages : int
        Number of stages: of runs of consecutive layers that are computed by ranks of their own.
    """

    partitions: int
    steps: tuple[Step, ...]
    outputs: Distribution
    layout: Layout
    slices: tuple[Range, ...]
    stages: int = 1

    def moving(self) -> Iterator[Moving]:
        """Yield each movement of values.

        What several steps take in the same way moves once. The network's inputs are known to all ranks.
        """
        takers = [*((step.name, step.operands, step.taken) for step in self.steps)]
        takers.append(("outputs", (len(self.steps),), (self.outputs,)))
        seen = set()
        for taker, (name, operands, taken) in enumerate(takers):
            for value, target in zip(operands, taken, strict=True):
                if value and (value, target) not in seen:
                    seen.add((value, target))
                    yield Moving(name, value, taker, self.steps[value - 1].given, target)

    def traffic(self, samples: int) -> list[Traffic]:
        """Return what moves in a step of training with a minibatch: values, then parameters, in order."""
        values = [Traffic(each.name, "values", each.elements(samples)) for each in self.moving()]
        parameters = [Traffic(step.name, "parameters", step.gathered()) for step in self.steps]
        return [each for each in (*values, *parameters) if each.elements.any()]

    def operations(self, samples: int) -> tuple[int, ...]:
        """Return the floating-point operations of each rank's products in a step of training."""
        return tuple(sum(step.operations(rank, samples) for step in self.steps) for rank in range(self.partitions))

    def memory(self, samples: int) -> tuple[int, ...]:
        """Return for how many elements each rank needs memory at most in a step of training; see `Step.memory`."""
        return tuple(sum(step.memory(rank, samples) for step in self.steps) for rank in range(self.partitions))

    @property
    def parameters(self) -> tuple[int, ...]:
        """How many elements of the flat vector each rank holds."""
        return tuple(own.size for own in self.slices)


def boxes_of(distribution: Iterable[Part | None], samples: int) -> list[Box | None]:
    """Return each rank's box of the array (samples, *shape)."""
    return [None if part is None else part.of(samples) for part in distribution]
