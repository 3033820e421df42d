"""The interface between an algorithm and the engines."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, ClassVar

from mpidl.algorithms.requests import Request
from mpidl.policies import ApplyAtOnce, Policy

Replica = Generator[Request, Any, None]


class Algorithm:
    """An algorithm: what a replica does and what a shard does with a push. Subclasses are frozen dataclasses.

    The fields of a subclass are the keys that ``[algorithm]`` takes in a configuration.
    """

    name: ClassVar[str]

    def replica(self, number: int, parameters: Any, replicas: int) -> Replica:
        """Return what replica `number` does, as a generator of requests.

        Parameters
        ----------
        number : int
            The replica, from 0.
        parameters : array, shape (size,)
            The replica's own copy of the parameters, to compute gradients at.
        replicas : int
            How many there are.
        """
        raise NotImplementedError

    def policy(self, replicas: int) -> Policy:
        """Return what a shard does with the pushes it receives; each shard gets an instance of its own."""
        return ApplyAtOnce()

    def check(self, deterministic: bool) -> None:
        """Raise UsageError if the algorithm's settings don't go with the run's."""
