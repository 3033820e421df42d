"""The instructions of a schedule: what a stage does with a micro-batch, one after another.

A schedule yields them for one stage. A stage receives what an instruction needs before it, and begins to send what
other stages need after it: the values of `Forward` to later stages, the gradients of `Backward` or `BackwardInputs` to
earlier ones. Micro-batches are numbered from 0, and stages too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Forward:
    """Compute the stage's values, and keep what the way back needs."""

    micro_batch: int


@dataclass(frozen=True, slots=True)
class Backward:
    """Compute all gradients of a micro-batch."""

    micro_batch: int


@dataclass(frozen=True, slots=True)
class BackwardInputs:
    """Compute the gradients with respect to the stage's inputs: B in Qi et al. 2024."""

    micro_batch: int


@dataclass(frozen=True, slots=True)
class BackwardWeights:
    """Compute those with respect to its parameters, some time after `BackwardInputs`: W in Qi et al. 2024."""

    micro_batch: int


@dataclass(frozen=True, slots=True)
class Step:
    """Update the stage's parameters by the gradients since the last step, up to that of this micro-batch."""

    micro_batch: int


Instruction = Forward | Backward | BackwardInputs | BackwardWeights | Step

#: Yields the instructions of a stage for a minibatch, from the stage's number and the numbers of stages and of
#: micro-batches.
Schedule = Callable[[int, int, int], Iterator[Instruction]]

#: What a micro-batch ends with on a stage: nothing of it is kept any more.
LAST = (Backward, BackwardWeights)


def slots(instructions: Iterable[Instruction]) -> dict[int, int]:
    """Return for each micro-batch the number of the memory that keeps what its way back needs.

    A micro-batch has it from `Forward` to its last instruction. There are as many as micro-batches are kept at once:
    the peak of the stashed activations.

    Examples
    --------
    >>> slots([Forward(0), Forward(1), Backward(0), Forward(2), Backward(1), Backward(2)])
    {0: 0, 1: 1, 2: 0}
    """
    found: dict[int, int] = {}
    free: list[int] = []
    for each in instructions:
        if isinstance(each, Forward):
            found[each.micro_batch] = free.pop(0) if free else len(set(found.values()))
        elif isinstance(each, LAST):
            free.append(found[each.micro_batch])
            free.sort()
    return found


def versions(instructions: Iterable[Instruction]) -> dict[int, int]:
    """Return for each micro-batch how often the stage had stepped when it began with it: the version of its weights.

    With weight stashing, its way back takes the same version (Narayanan et al. 2019, section 3.3).

    Examples
    --------
    >>> versions([Forward(0), Backward(0), Step(0), Forward(1), Backward(1), Step(1)])
    {0: 0, 1: 1}
    """
    found, steps = {}, 0
    for each in instructions:
        if isinstance(each, Forward):
            found[each.micro_batch] = steps
        steps += isinstance(each, Step)
    return found


def kept(instructions: Sequence[Instruction]) -> int:
    """Return of how many versions of its weights a stage keeps a copy, at most, besides the newest one."""
    used, most, steps = versions(instructions), 0, 0
    under_way: set[int] = set()
    for each in instructions:
        if isinstance(each, Forward):
            under_way.add(each.micro_batch)
        elif isinstance(each, LAST):
            under_way.remove(each.micro_batch)
        steps += isinstance(each, Step)
        most = max(most, len({used[number] for number in under_way} - {steps}))
    return most
