"""The ranks of a replica: the part of a cut model that each computes, and their messages and sums."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpidl.device import to_host
from mpidl.nn.model import CompleteModel
from mpidl.parameters.layout import Layout
from mpidl.parameters.ranges import Range
from mpidl.partition.schedules import Pipeline


class PersistentMessage(NamedTuple):
    """One end of a message between two arrays, which can be sent any number of times.

    Attributes
    ----------
    start : callable
        Begin to send the array, or to receive into it. Until the end, it must not be changed, or read.
    wait : callable
        Wait for the end; return at once if it hasn't been started again.
    free : callable
        Free it; not between `start` and `wait`. By default there is nothing to free.
    """

    start: Callable[[], Any]
    wait: Callable[[], Any]
    free: Callable[[], Any] = lambda: None


class RankGroup(ABC):
    """Ranks that compute a model together.

    Messages from one rank to another with the same tag arrive in the order in which they are started. All ranks call
    collective methods in the same order.
    """

    rank: int
    size: int

    @abstractmethod
    def send(self, to: int, array: np.ndarray, tag: int) -> PersistentMessage:
        """Return a message, not started yet, that sends a contiguous array to another rank; tags are below 32768."""

    @abstractmethod
    def receive(self, source: int, array: np.ndarray, tag: int) -> PersistentMessage:
        """Return a message, not started yet, that receives into a contiguous array from another rank."""

    @abstractmethod
    def subgroup(self, ranks: Sequence[int]) -> RankGroup:
        """Return the group of some of the ranks, in ascending order; only these call it."""

    @abstractmethod
    def share(self, value: Any) -> Any:
        """Return the value of rank 0 on all ranks."""

    @abstractmethod
    def gather(self, array: np.ndarray, gathered: np.ndarray) -> None:
        """Overwrite `gathered` (size, *array.shape) with the arrays of all ranks."""

    @abstractmethod
    def free(self) -> None:
        """Free the group and its subgroups; collective."""

    def total(self, number: float) -> float:
        """Return the sum of the numbers of all ranks, in their order: the same bits on all."""
        own = np.array([number])
        self.sum(own)
        return float(own[0])

    def sum(self, array: Any) -> None:
        """Replace a NumPy or CuPy array by its sum over the ranks, in their order: the same bits on all.

        It should be small: each rank receives the arrays of all others.
        """
        own = np.ascontiguousarray(to_host(array))
        gathered = np.empty((self.size, *own.shape), own.dtype)
        self.gather(own, gathered)
        total = gathered[0]
        for each in gathered[1:]:
            total += each
        if hasattr(array, "set"):
            array.set(total)
        else:
            array[...] = total


class CutModel(CompleteModel):
    """One rank's part of a model that is cut over the ranks of a replica.

    All ranks of a group compute losses, gradients and evaluations together, each with its own part, from the same
    batches. Ranges, as in `layout`, `statistics` and `initial`, are those of the whole vector; `parameters` and
    gradients are the rank's part of it.

    Attributes
    ----------
    plan : Plan or Sections
    slice : Range
        The rank's part of the whole vector.
    """

    def __init__(self, whole: CompleteModel, plan: Any, rank: int, schedule: str, micro_batches: int) -> None:
        self.plan, self._whole, self._rank = plan, whole, rank
        self.layout, self.slice = plan.layout, plan.slices[rank]
        self.dtype, self.takes_integers = whole.dtype, whole.takes_integers
        self._pipeline = Pipeline(schedule, micro_batches, rank * plan.stages // plan.partitions, plan.stages)
        self._group: RankGroup | None = None

    def bind(self, group: RankGroup) -> None:
        """Compute with the other ranks of a group, until `unbind`; ValueError if its ranks aren't those of the plan."""
        own = self._rank, self.plan.partitions
        if (group.rank, group.size) != own:
            raise ValueError(f"rank {own[0]} of {own[1]}, the group's is {group.rank} of {group.size}")
        self.unbind()
        self._group = group

    def unbind(self) -> None:
        """Free the messages between the ranks; arrays stay allocated."""
        self._group = None

    def initial(self, whole: Range, layout: Layout | None = None) -> np.ndarray:
        """Return the initial values of a range of the whole vector, which are those of the uncut model."""
        return self._whole.initial(whole, self.layout if layout is None else layout)

    def _bound(self) -> RankGroup:
        if self._group is None:
            raise RuntimeError("a cut model computes only while it is bound to a group")
        return self._group
