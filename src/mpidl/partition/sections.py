"""Cuts of consecutive modules, such as those of PyTorch and JAX, into stages of one rank each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple, Protocol

import numpy as np

from mpidl.data.batch import Batch
from mpidl.errors import UsageError
from mpidl.nn.model import CompleteModel, Evaluation
from mpidl.parameters.layout import Layout
from mpidl.parameters.ranges import Range
from mpidl.partition.planner import balanced
from mpidl.partition.schedules import BackwardPart, MicroBatch


class Submodule(NamedTuple):
    """A module of a model, with the names of its tensors in the model's layout.

    Attributes
    ----------
    cost : float, optional
        Cost of its forward pass per sample, in any unit; its number of trained parameters by default.
    """

    trained: Sequence[str]
    statistics: Sequence[str] = ()
    cost: float | None = None


@dataclass(frozen=True)
class Sections:
    """A plan of a model of consecutive modules, with the same attributes as a `Plan` of a network.

    Attributes
    ----------
    runs : tuple of Range
        The modules of each stage.
    layout : Layout
        The tensors in the flat vector: first those of stage 0, then stage 1, ...
    slices : tuple of Range
        Each stage's part of the flat vector.
    statistics : tuple of Range
        The ranges that rules don't change.
    """

    runs: tuple[Range, ...]
    layout: Layout
    slices: tuple[Range, ...]
    statistics: tuple[Range, ...]

    @property
    def partitions(self) -> int:
        """Number of ranks."""
        return len(self.runs)

    @property
    def stages(self) -> int:
        """Number of stages: one per rank."""
        return len(self.runs)


class StageModel(Protocol):
    """The modules of one stage, as their framework computes them.

    They have the members of a `CompleteModel` below, for their own tensors.
    """

    parameters: Any

    def freeze(self, names: Sequence[str]) -> None: ...

    def constants(self) -> Mapping[str, np.ndarray]: ...

    def buffers(self) -> Mapping[str, np.ndarray]: ...

    def load_buffers(self, buffers: Mapping[str, np.ndarray]) -> None: ...

    def state(self) -> Mapping[str, Any]: ...

    def load_state(self, state: Mapping[str, np.ndarray]) -> None: ...

    def loss_sums(self, loss: float, batch: Batch) -> tuple[float, float]: ...

    def begin(self, batch: Batch) -> None:
        """Prepare for the gradient of a minibatch."""

    def compute(self, inputs: Any, own: MicroBatch) -> np.ndarray | None:
        """Return the outputs (n, ...), optionally on the last stage, and keep what the backward pass needs."""
        ...

    def weighted_loss(self, targets: Any, own: MicroBatch) -> float:
        """Return the mean loss of the last stage's newest outputs, times `own.share`, and keep it."""
        ...

    def back(self, gradient: np.ndarray | None, own: MicroBatch, part: BackwardPart) -> np.ndarray | None:
        """Add a micro-batch's gradient to the sum, and return the input gradient (None on stage 0).

        `gradient` is that of the outputs: None on the last stage, and where `part` is "weights".
        """
        ...

    def end(self) -> Any:
        """Return the gradient (slice.size,)."""

    def test(self, inputs: Any) -> Any:
        """Return the outputs in evaluation mode."""

    def host(self, outputs: Any) -> np.ndarray:
        """Return the outputs of `test` as an array (n, ...) of the model's dtype."""
        ...

    def judge(self, batch: Batch, outputs: Any) -> Evaluation:
        """Evaluate the last stage's outputs."""
        ...


def sections_of(model: CompleteModel, stages: int, costs: Sequence[float] | None = None) -> Sections:
    """Cut a model into stages.

    Parameters
    ----------
    costs : sequence of float, optional
        Cost of each module, in any unit, such as measured seconds; by default, their numbers of parameters.

    Raises
    ------
    UsageError
        The model can't be cut, or has too few modules with parameters.
    """
    if not model.by_stages:
        kind = "a user's own model" if model.own else type(model).__name__
        raise UsageError(f"topology.stages: {stages}, but {kind} can't be cut, expected 1")
    found: Sections = import_module(model.by_stages).sections(model, stages, costs)
    return found


def cut_into_sections(modules: Sequence[Submodule], shapes: dict[str, tuple[int, ...]], stages: int) -> Sections:
    """Divide modules, with tensors of these shapes, into stages so that the most expensive one is as cheap as possible.

    Each stage has parameters: modules without parameters stay with the one before them. UsageError if there are fewer
    modules with parameters than stages.
    """
    costs = [sum(prod(shapes[name]) for name in each.trained) if each.cost is None else each.cost for each in modules]
    heads = [number for number, each in enumerate(modules) if each.trained]
    if stages > len(heads):
        raise UsageError(f"topology.stages: {stages}, expected at most one for each of {len(heads)} trained modules")
    bounds = [0, *heads[1:], len(modules)]
    units = [Range(*each) for each in pairwise(bounds)]
    divided = balanced([sum(costs[slice(*unit)]) for unit in units], stages)
    runs = [Range(units[run.start].start, units[run.stop - 1].stop) for run in divided]
    tensors, slices, statistics, size = [], [], [], 0
    for run in runs:
        own, start = modules[slice(*run)], size
        for kind in ("trained", "statistics"):
            names = [name for each in own for name in getattr(each, kind)]
            first = size
            tensors += [(name, shapes[name]) for name in names]
            size += sum(prod(shapes[name]) for name in names)
            if kind == "statistics" and size > first:
                statistics.append(Range(first, size))
        slices.append(Range(start, size))
    return Sections(tuple(runs), Layout(tensors), tuple(slices), tuple(statistics))
