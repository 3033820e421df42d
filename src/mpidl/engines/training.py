"""The parts of a run that every engine in one process needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mpidl.algorithms.algorithm import Algorithm
from mpidl.algorithms.steps import Steps
from mpidl.data.dataset import Split
from mpidl.data.schedule import Schedule
from mpidl.nn.model import Model
from mpidl.parameters.ranges import Range


@dataclass(frozen=True)
class Training:
    """An algorithm, the model that it trains, and the data.

    Parameters
    ----------
    algorithm : Algorithm
    model : Model
        Computes the gradients of all replicas.
    split : Split
        The training data.
    schedule : Schedule
    rate_at : callable
        Takes a portion's number and returns the factor of the replicas' own learning rates; see `Steps`.
    statistics : sequence of Range
        Parameters that rules leave alone; see `Steps`.
    """

    algorithm: Algorithm
    model: Model
    split: Split
    schedule: Schedule
    rate_at: Callable[[int], float] = lambda portion: 1.0
    statistics: Sequence[Range] = ()

    def steps(self) -> Steps:
        """Return what makes the own steps of one more replica."""
        return Steps(self.rate_at, self.statistics)
