"""PipeDream: stages that train without ever waiting for a minibatch's end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpidl.data.batch import Batch
from mpidl.errors import UsageError
from mpidl.nn.network import Network
from mpidl.partition.group import Group
from mpidl.partition.network import CutNetwork
from mpidl.partition.plan import Plan
from mpidl.partition.schedules.instructions import Backward, Forward, Step, slots
from mpidl.partition.schedules.pipedream import pipedream


class PipeDream:
    """A rank's part of a network whose stages update their parameters after each minibatch (Narayanan et al. 2019).

    Minibatches follow each other through the stages by 1F1B without a flush. A stage keeps, for each that is under way,
    the version of its parameters with which it went forward, and goes back with the same: weight stashing. With
    minibatches and the K stages counted from 0, minibatch t goes through stage s with the parameters after
    t - (K - 1 - s) updates, or with the first ones.

    Parameters
    ----------
    network : Network
        The whole network.
    plan : Plan
        A plan with stages; the tensors of a stage may be cut over its ranks.
    rank : int

    Attributes
    ----------
    parameters : array (slice.size,)
        What the rank holds of the flat vector: the newest version.

    Raises
    ------
    UsageError
        If the network's gradients are clipped: the norm is of all stages, which nobody waits for.
    """

    def __init__(self, network: Network, plan: Plan, rank: int) -> None:
        if network.regularisation.clip is not None:
            raise UsageError("model.clip: a norm of all stages, which don't wait for each other: expected none")
        self._stage, self._stages = rank * plan.stages // plan.partitions, plan.stages
        count = self._stages - self._stage
        #: One for each minibatch that is under way, with the version of the parameters that it goes with.
        self._stash = [CutNetwork(network, plan, rank) for _ in range(count)]
        self.parameters = self._stash[0].parameters.copy()

    def train(self, group: Group, batches: Sequence[Batch], update: Callable[[Any, Any], None]) -> np.ndarray:
        """Train with some minibatches, and return their mean losses (batches,), on all ranks.

        Parameters
        ----------
        group : Group
            The ranks of the plan.
        batches : sequence of Batch
            The same on all ranks.
        update : callable
            Changes the parameters (slice.size,) by a gradient (slice.size,), both the rank's.
        """
        instructions = list(pipedream(self._stage, self._stages, len(batches)))
        memory, losses = slots(instructions), np.zeros(len(batches))
        for each in self._stash:
            each.bind(group)
        for instruction in instructions:
            number = instruction.micro_batch
            model = self._stash[memory[number]]
            match instruction:
                case Forward():
                    model.parameters[:] = self.parameters
                    losses[number] = model.forward(batches[number])
                case Backward():
                    penalty, gradient = model.backward()
                    losses[number] += penalty
                case Step():
                    update(self.parameters, gradient)
        for each in self._stash:
            each.complete()
            each.unbind()
        group.sum(losses)
        return losses
