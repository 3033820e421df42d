"""The ranks of a replica, and what they can say to each other."""

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
        Begin to send the array, or to receive into it. It must not be changed, or read, until the end.
    wait : callable
        Wait until it is sent, or received; return at once if it hasn't been started again.
    free : callable
        Give back what it needs; only when it isn't under way.
    """

    start: Callable[[], Any]
    wait: Callable[[], Any]
    free: Callable[[], Any]


class Group(ABC):
    """Ranks that compute a model together.

    Messages from one rank to another with the same tag arrive in the order in which they are started. What all ranks do
    together, they do in the same order.

    Attributes
    ----------
    rank, size : int
    """

    rank: int
    size: int

    @abstractmethod
    def send(self, to: int, array: np.ndarray, tag: int) -> Message:
        """Return the message that takes an array's elements to another rank; it isn't started yet.

        Parameters
        ----------
        to : int
        array : array, contiguous
        tag : int
            Below 32768.
        """

    @abstractmethod
    def receive(self, source: int, array: np.ndarray, tag: int) -> Message:
        """Return the message that brings an array's elements from another rank; see `send`."""

    @abstractmethod
    def subgroup(self, ranks: Sequence[int]) -> Group:
        """Return the group of some of the ranks, in ascending order; all of them call it, others needn't."""

    @abstractmethod
    def share(self, value: Any) -> Any:
        """Return what rank 0 gives, on all ranks."""

    @abstractmethod
    def gather(self, array: np.ndarray, gathered: np.ndarray) -> None:
        """Overwrite `gathered` (size, *array.shape) with the arrays of all ranks."""

    @abstractmethod
    def free(self) -> None:
        """Free what the group has allocated, subgroups too; all ranks do it together."""

    def total(self, number: float) -> float:
        """Return the sum of the numbers of all ranks, in their order: the same bits on all."""
        own = np.array([number])
        self.sum(own)
        return float(own[0])

    def sum(self, array: Any) -> None:
        """Replace an array by its sum over the ranks, in their order: the same bits on all.

        Parameters
        ----------
        array : array
            NumPy or CuPy; small, since each rank receives those of all others.
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
