"""Movements between two distributions of an array over the ranks of a replica."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpidl.parameters.ranges import Box

#: A rank's part of an array: nothing, a box, or several boxes without common elements.
Held = Box | None | tuple[Box, ...]


class Summand(NamedTuple):
    """A box that a rank receives from another, or from itself.

    Attributes
    ----------
    rank : int
        The giver.
    copied, added : list of Box
        The parts of the box that no lower rank gives, and those that are added to the summands of lower ranks.
    """

    rank: int
    box: Box
    copied: list[Box]
    added: list[Box]


class Transfer:
    """A linear map between two distributions of an array over ranks: rank q receives the elements t of its target.

    ``y_q[t]`` is the sum of ``x_p[t]`` over the ranks p whose source has the element t, in the order of the ranks; 0 if
    there are none. Sources without common elements are copied, others summed, and an element of several targets goes
    to each. Halo exchange, all-gather, reduce-scatter, broadcast and redistribution are all transfers.

    Parameters
    ----------
    source, target : sequence of Box, None or tuple of Box
        Each rank's part, before and after.

    Attributes
    ----------
    source, target : tuple of tuple of Box
        The non-empty boxes of each rank.

    Raises
    ------
    ValueError
        The numbers of ranks differ.

    Examples
    --------
    An all-gather of 3 elements:

    >>> from mpidl.parameters import Range
    >>> first, second, both = (Box((each,)) for each in (Range(0, 2), Range(2, 3), Range(0, 3)))
    >>> gather = Transfer([first, second], [both, both])
    >>> gather.sends(0)
    [(1, Box(ranges=(Range(start=0, stop=2),)))]
    """

    def __init__(self, source: Sequence[Held], target: Sequence[Held]) -> None:
        if len(source) != len(target):
            raise ValueError(f"a source on {len(source)} ranks, a target on {len(target)}")
        self.source = tuple(map(_boxes, source))
        self.target = tuple(map(_boxes, target))

    @property
    def adjoint(self) -> Transfer:
        """The map from gradients with respect to the target to those with respect to the source."""
        return Transfer(self.target, self.source)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Number of elements [p, q] that rank q takes from rank p: (ranks, ranks)."""
        found = np.zeros((len(self.source), len(self.target)), np.int64)
        (givers, first), (takers, second) = _bounds(self.source), _bounds(self.target)
        if len(givers) and len(takers):
            start = np.maximum(first[:, None, :, 0], second[None, :, :, 0])
            stop = np.minimum(first[:, None, :, 1], second[None, :, :, 1])
            common = (stop - start).clip(0).prod(axis=-1, dtype=np.int64)
            np.add.at(found, (givers[:, None], takers[None, :]), common)
        return found

    @property
    def moved(self) -> NDArray[np.int64]:
        """Number of elements [p, q] that rank p sends to rank q: (ranks, ranks), zero on the diagonal."""
        found = self.counts.copy()
        np.fill_diagonal(found, 0)
        return found

    def sent(self, rank: int) -> int:
        """Return the number of elements that a rank sends to others."""
        return int(self.counts[rank].sum() - self.counts[rank, rank])

    def received(self, rank: int) -> int:
        """Return the number of elements that a rank receives from others."""
        return int(self.counts[:, rank].sum() - self.counts[rank, rank])

    def rests(self, rank: int) -> bool:
        """Return whether a rank's part stays the same, and it sends and receives nothing."""
        return self.source[rank] == self.target[rank] and not self.sent(rank) and not self.received(rank)

    def sends(self, rank: int) -> list[tuple[int, Box]]:
        """Return the ranks to which a rank sends boxes, and the boxes."""
        to = [other for other in np.flatnonzero(self.counts[rank]).tolist() if other != rank]
        return [(other, box) for other in to for box in self._common(rank, other)]

    def summands(self, rank: int) -> tuple[list[Summand], list[Box]]:
        """Return all summands of a rank's target, its own included, in the order of ranks, and the boxes without any.

        Together, the copied parts and the boxes without summands are the target, each element once.
        """
        missing, found = list(self.target[rank]), []
        for giver in np.flatnonzero(self.counts[:, rank]).tolist():
            for box in self._common(giver, rank):
                copied = [part for each in missing if (part := each.intersect(box)) is not None]
                added = [box]
                for part in copied:
                    added = [rest for each in added for rest in each.minus(part)]
                missing = [rest for each in missing for rest in each.minus(box)]
                found.append(Summand(giver, box, copied, added))
        return found, missing

    def _common(self, giver: int, taker: int) -> list[Box]:
        pairs = ((own, its) for own in self.source[giver] for its in self.target[taker])
        return [common for own, its in pairs if (common := own.intersect(its)) is not None]


def _boxes(held: Held) -> tuple[Box, ...]:
    boxes = () if held is None else (held,) if isinstance(held, Box) else held
    return tuple(box for box in boxes if box.size)


def _bounds(held: Sequence[Sequence[Box]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rank of each box, and its bounds (boxes, axes, 2)."""
    ranks = [rank for rank, boxes in enumerate(held) for _ in boxes]
    bounds = [box.ranges for boxes in held for box in boxes]
    axes = len(bounds[0]) if bounds else 0
    return np.array(ranks, np.int64), np.array(bounds, np.int64).reshape(len(ranks), axes, 2)
