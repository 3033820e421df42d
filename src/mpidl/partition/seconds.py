"""The seconds that a plan's steps take."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mpidl.partition.costs import Costs
from mpidl.partition.plan import Distribution, Plan, Step, boxes_of, sharers
from mpidl.partition.transfer import Transfer

#: Operations that take as long as a layer does with one element that it takes or gives, beside its products.
PER_ELEMENT = 32


class Basis(NamedTuple):
    """What the seconds of a step of training depend on, besides the plan.

    Attributes
    ----------
    samples : int
        Samples of a minibatch.
    costs : Costs
        What work and movement take.
    itemsize : int
        Bytes of an element.
    """

    samples: int
    costs: Costs
    itemsize: int


def plan_seconds(plan: Plan, basis: Basis) -> float:
    """Return the seconds of a step of training of a plan without stages, one layer after the other."""
    work = sum(work_seconds(step, basis) for step in plan.steps)
    return work + sum(movement_seconds(source, target, basis) for _, source, target in plan.moving())


def work_seconds(step: Step, basis: Basis) -> float:
    """Return the seconds of computing a step, forward and backward, and of gathering parameters that ranks share."""
    samples, costs, itemsize = basis
    busiest = max(_compute(step, rank, samples, costs) for rank in range(len(step.given)))
    gathered, partners = np.zeros(len(step.given)), np.zeros(len(step.given), int)
    for _, box, users in sharers(step.tensors):
        gathered[list(users)] += box.size * (len(users) - 1) / len(users)
        partners[list(users)] += len(users) - 1
    # There and back.
    seconds = busiest + 2 * costs.move(float(gathered.max()) * itemsize, int(partners.max()))
    if step.together:
        # Two sums forward, one backward.
        seconds += 3 * costs.move(0, sum(layer is not None for layer in step.layers) - 1)
    return seconds


def _compute(step: Step, rank: int, samples: int, costs: Costs) -> float:
    layer = step.layers[rank]
    if layer is None:
        return 0.0
    elementwise = costs.compute(PER_ELEMENT * step.values(rank, samples))
    return elementwise + costs.compute(step.operations(rank, samples), layer.type)


def movement_seconds(source: Distribution, target: Distribution, basis: Basis) -> float:
    """Return the seconds in which a value gets from one distribution to another, and its gradient back."""
    samples, costs, itemsize = basis
    elements = Transfer(boxes_of(source, samples), boxes_of(target, samples)).moved
    busiest = max(elements.sum(axis=0).max(), elements.sum(axis=1).max())
    messages = max((elements > 0).sum(axis=0).max(), (elements > 0).sum(axis=1).max())
    return 2 * costs.move(int(busiest) * itemsize, int(messages))
