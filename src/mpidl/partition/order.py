"""Where a cut network adds in another order than the whole one, so that its bits are others."""

from __future__ import annotations

from collections import Counter

from mpidl.partition.plan import Distribution, Plan, sharers


def in_another_order(plan: Plan, clips: bool = False) -> list[str]:
    """Return the names of the layers at which ranks add up what one rank alone adds up in another order.

    Forward, a sum of what several ranks give; backward, a gradient with respect to a value or to a parameter that
    several ranks take. A library's products may round otherwise for parts of a matrix, whatever the order.

    Parameters
    ----------
    plan : Plan
    clips : bool
        Whether the norm of the whole gradient counts.
    """
    takers = Counter((value, step.name) for step in plan.steps for value in set(step.operands))
    found: dict[str, None] = {}
    for name, source, target in plan.moving():
        if _overlaps(source) or _overlaps(target):
            found[name] = None
    for step in plan.steps:
        shared = any(len(ranks) > 1 for _, _, ranks in sharers(step.tensors))
        # Two gradients of a value that several layers take have the same sum in any order, more don't.
        several = any(sum(value == other for other, _ in takers) > 2 for value in step.operands if value)
        if shared or step.together or several:
            found[step.name] = None
    if clips and plan.partitions > 1:
        found["the norm that is clipped"] = None
    return list(found)


def _overlaps(distribution: Distribution) -> bool:
    """Return whether several ranks have an element, for some number of samples."""
    parts = [part for part in distribution if part is not None and part.box.size]
    for place, one in enumerate(parts):
        for other in parts[:place]:
            apart = one.share is not None and other.share is not None and one.share[1] == other.share[1]
            if one.box.intersect(other.box) and not (apart and one.share != other.share):
                return True
    return False
