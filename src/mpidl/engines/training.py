"""The parts of a run for an engine in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mpidl.algorithms.algorithm import Algorithm
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.data.dataset import Split
from mpidl.data.schedule import Schedule
from mpidl.nn.model import Model
from mpidl.parameters.ranges import Range
from mpidl.rules.segments import Segment


@dataclass(frozen=True)
class Training:
    """An algorithm, the model that it trains, and the data.

    Parameters
    ----------
    model : Model
        Computes the gradients of all replicas.
    split : Split
        The training data.
    rate_at : callable
        Takes a portion's number and returns the factor of the replicas' own learning rates.
    statistics, segments, buffers, fragments
        As for `ReplicaState`.
    """

    algorithm: Algorithm
    model: Model
    split: Split
    schedule: Schedule
    rate_at: Callable[[int], float] = lambda portion: 1.0
    statistics: Sequence[Range] = ()
    segments: Sequence[Segment] = ()
    buffers: Callable[[], Mapping[str, np.ndarray]] = dict
    fragments: Sequence[Range] = ()

    def replica_state(self) -> ReplicaState:
        """Return the initial state of another replica."""
        return ReplicaState(self.rate_at, self.statistics, self.segments, self.buffers, self.fragments)
