"""Where a cut network rounds otherwise than the whole one, so that its bits are others."""

from __future__ import annotations

from itertools import combinations

from mpidl.partition.plan import Distribution, Plan, Step, sharers


def rounded_otherwise(plan: Plan, clips: bool = False) -> list[str]:
    """Return the names of the layers at which a cut network rounds otherwise than the whole one.

    Ranks add up what one rank alone adds up in another order: forward, what several of them give of a value; backward,
    the gradient with respect to a value or a parameter that several of them take. Libraries may round a product
    otherwise if a rank computes a part of its columns.

    Parameters
    ----------
    plan : Plan
    clips : bool
        Whether the norm of the whole gradient counts.
    """
    found = {step.name: None for step in plan.steps if _sums(step) or _cuts_columns(step)}
    for step in plan.steps:
        for value, taken in zip(step.operands, step.taken, strict=True):
            # The network's inputs have no gradient.
            if value and _overlaps(taken):
                found[step.name] = None
    if clips and plan.partitions > 1:
        found["the norm that is clipped"] = None
    return list(found)


def _sums(step: Step) -> bool:
    """Return whether ranks sum a step's values, its statistics, or the gradients of its parameters."""
    shared = any(len(ranks) > 1 for _, _, ranks in sharers(step.tensors))
    return shared or step.together or _overlaps(step.given)


def _cuts_columns(step: Step) -> bool:
    """Return whether ranks compute parts of the columns of a step's products."""
    parts = [part.box.ranges[-1] for part in step.given if part is not None and part.box.size]
    multiplies = any(step.operations(rank, samples=1) for rank in range(len(step.given)))
    return multiplies and len(set(parts)) > 1


def _overlaps(distribution: Distribution) -> bool:
    """Return whether several ranks have an element, for some number of samples."""
    parts = [part for part in distribution if part is not None and part.box.size]
    return any(
        one.box.intersect(other.box) and not (one.share and other.share and one.share != other.share)
        for one, other in combinations(parts, 2)
    )
