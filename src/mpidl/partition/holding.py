"""Which rank holds which parameters of a cut network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mpidl.parameters.box import Box, boxes
from mpidl.parameters.layout import Layout
from mpidl.parameters.ranges import Range, split
from mpidl.partition.plan import Step, sharers


def hold(
    shapes: Sequence[tuple[str, tuple[int, ...]]], steps: Iterable[Step], partitions: int
) -> tuple[Layout, tuple[Range, ...]]:
    """Return the layout of the flat vector, first what rank 0 holds, then rank 1, ..., and each rank's range of it.

    What one rank takes, it holds. What several take is divided among them, in consecutive ranges of the flattened part.

    Parameters
    ----------
    shapes
        Name and shape of each of the network's tensors.
    steps
        The network's.
    partitions
        Number of ranks.
    """
    held: dict[tuple[str, int], list[Box]] = {}
    for step in steps:
        for name, box, ranks in sharers(step.tensors):
            for rank, own in zip(ranks, split(box.size, len(ranks)), strict=True):
                inner = (part for part, _ in boxes(box.shape, *own))
                held.setdefault((f"{step.name}/{name}", rank), []).extend(part.placed(box) for part in inner)
    pieces: list[tuple[str, Box]] = []
    slices, size = [], 0
    for rank in range(partitions):
        start = size
        for name, _ in shapes:
            own_boxes = held.get((name, rank), [])
            pieces += [(name, box) for box in own_boxes]
            size += sum(box.size for box in own_boxes)
        slices.append(Range(start, size))
    return Layout(shapes, pieces), tuple(slices)
