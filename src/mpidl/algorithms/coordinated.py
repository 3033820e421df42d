"""Algorithms with a coordinator that drives the run."""

from __future__ import annotations

from collections.abc import Generator
from math import inf
from typing import Any, ClassVar

from mpidl.algorithms.algorithm import Algorithm, Exchange, Replica, check_timing
from mpidl.algorithms.coordination import SEGMENTS, CoordinatorRequest
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Accrue, Fetch, Function, Gradient, NextUnit, loss_and_gradient
from mpidl.parameters import Layout
from mpidl.rules import Rule

Coordinator = Generator[CoordinatorRequest, Any, None]


class Coordinated(Algorithm):
    """An algorithm with a coordinator that drives the run; replicas compute units of the batches that it asks for.

    It resumes only from a checkpoint with its own coordinator's state. From others it takes the parameters, which
    another algorithm may have trained.

    Attributes
    ----------
    unit : int
        Number of portions that a replica takes at a time and pushes together.
    backups : bool
        Whether outstanding units near the end of a batch are assigned to a second replica.
    """

    default_rule: ClassVar[Rule | None] = None
    takes_statistics: ClassVar[bool] = False

    unit: int
    backups: bool

    @property
    def exchange(self) -> Exchange:
        return Exchange.OPERATIONS

    def coordinator(
        self, portions: int, state: dict[str, Any] | None = None, layout: Layout | None = None, samples: float = inf
    ) -> Coordinator:
        """Return the coordinator's requests, as a generator.

        Parameters
        ----------
        portions : int
            Number of portions of the data.
        state : dict, optional
            That of an earlier `Iteration`, from which the coordinator resumes.
        layout : Layout, optional
            Layout of the parameters, if the algorithm depends on it.
        samples : float
            Number of samples of the whole run: when they have been accrued, the answer to an `Iteration` is to stop.
        """
        raise NotImplementedError

    def matrices(self) -> tuple[str, ...]:
        """Return the names of the shards' matrices.

        They are of float64, with a row for each parameter of the shard, and a column for each of the model.
        """
        return ()

    def model(self, outputs: int) -> dict[str, Any]:
        """Return the keys of ``[model]`` that the algorithm determines, such as `layer`, for a number of outputs."""
        return {}

    @property
    def makes_model(self) -> bool:
        """Whether the algorithm makes the layers; replicas then compute with them on one rank's CPU each."""
        return bool(self.model(1))

    @property
    def least_epochs(self) -> int:
        """Number of epochs in which every part of the model that the algorithm makes can be trained."""
        return 0

    def function(self, task: int) -> Function:
        """Return what replicas compute of a batch for a task: `Gradient.function`."""
        return loss_and_gradient

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the model replica of Dean et al. (2012), algorithm 7.2."""
        accrued = parameters.copy()
        evaluation = None
        while (unit := (yield NextUnit())) is not None:
            if unit.evaluation != evaluation:
                yield Fetch(parameters)
                evaluation, function = unit.evaluation, self.function(unit.task)
            accrued.fill(0)
            for batch in unit.batches:
                gradient = yield Gradient(parameters, batch, function)
                gradient *= state.weight
                accrued += gradient
            yield Accrue(unit, accrued)

    def units(self, portions: int) -> int:
        """Return the largest number of units of an evaluation, given the number of portions of the data."""
        # Each segment may end with a smaller unit.
        return -(-portions // self.unit) + SEGMENTS

    def check(self, deterministic: bool, rule: Rule | None) -> None:
        # Sums are in the order in which units arrive.
        check_timing("name", self.name, deterministic)


def matrices(algorithm: Algorithm) -> tuple[str, ...]:
    """Return the names of the matrices of which an algorithm's shards keep rows."""
    return algorithm.matrices() if isinstance(algorithm, Coordinated) else ()
