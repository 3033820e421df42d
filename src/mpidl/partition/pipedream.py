"""PipeDream: stages that train without a flush after each minibatch."""

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
from mpidl.partition.schedules import Backward, Forward, OptimizerStep, pipedream, slots


class PipeDream:
    """A rank's part of a network whose stages update their parameters after each minibatch (Narayanan et al. 2019).

    Minibatches follow each other through the stages by 1F1B without a flush. A stage keeps its parameters of each
    minibatch's forward pass for the backward pass: weight stashing. With minibatches and the K stages counted from 0,
    minibatch t passes through stage s with the parameters after t - (K - 1 - s) updates, or with the initial ones.

    Parameters
    ----------
    network : Network
        The whole network.
    plan : Plan
        A plan with stages; the tensors of a stage may be cut over its ranks.

    Attributes
    ----------
    parameters : array (slice.size,)
        The newest version of the rank's part of the flat vector.

    Raises
    ------
    UsageError
        The network's gradients are clipped, by a norm over all stages.
    """

    def __init__(self, network: Network, plan: Plan, rank: int) -> None:
        if network.regularisation.clip is not None:
            raise UsageError("model.clip: PipeDream has no norm over all stages, expected none")
        self._stage, self._stages = rank * plan.stages // plan.partitions, plan.stages
        count = self._stages - self._stage
        # One for each minibatch in progress, with its version of the parameters.
        self._stash = [CutNetwork(network, plan, rank) for _ in range(count)]
        self.parameters = self._stash[0].parameters.copy()

    def train(self, group: Group, batches: Sequence[Batch], update: Callable[[Any, Any], None]) -> np.ndarray:
        """Train with minibatches, the same on all ranks, and return their mean losses (batches,) on all ranks.

        `update` changes the rank's parameters (slice.size,), given a gradient (slice.size,).
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
                case OptimizerStep():
                    update(self.parameters, gradient)
        for each in self._stash:
            each.complete()
            each.unbind()
        group.sum(losses)
        return losses
