"""The interface of the ranks of a replica to each other: messages and sums."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpidl.device import to_host


class Message(NamedTuple):
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


class Group(ABC):
    """Ranks that compute a model together.

    Messages from one rank to another with the same tag arrive in the order in which they are started. All ranks call
    collective methods in the same order.
    """

    rank: int
    size: int

    @abstractmethod
    def send(self, to: int, array: np.ndarray, tag: int) -> Message:
        """Return a message, not started yet, that sends a contiguous array to another rank; tags are below 32768."""

    @abstractmethod
    def receive(self, source: int, array: np.ndarray, tag: int) -> Message:
        """Return a message, not started yet, that receives into a contiguous array from another rank."""

    @abstractmethod
    def subgroup(self, ranks: Sequence[int]) -> Group:
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
