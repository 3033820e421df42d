"""The division of a model: a layer's work and parameters over ranks, consecutive layers into stages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from mpidl.nn.layers.layer import Layer, Piece
from mpidl.nn.layers.workspace import Shape
from mpidl.parameters.layout import Layout
from mpidl.parameters.ranges import Box, Range, boxes, split
from mpidl.partition.plan import CutLayer, Part, TensorDistribution, sharers


def cut_layer(
    layer: Layer, name: str, cut: str, ranks: Range, partitions: int, shapes: Sequence[Shape]
) -> tuple[CutLayer, ...]:
    """Return the steps of a layer, with operands of these shapes, that is cut over some of the ranks.

    Returns
    -------
    tuple of CutLayer
        One step, or two, where the second takes the value of the first. Operands are counted from 0, and the first
        step's value follows them.

    Raises
    ------
    UsageError
        The layer can't be cut this way.
    """
    by_number = [layer.pieces(cut, number, ranks.size, *shapes) for number in range(ranks.size)]
    operands = [tuple(range(len(shapes))), (len(shapes),)]
    steps = []
    for pieces, taken in zip(zip(*by_number, strict=True), operands, strict=False):
        steps.append(_step(name, cut, pieces, ranks, partitions, taken))
    return tuple(steps)


def _step(
    name: str, cut: str, pieces: Sequence[Piece], ranks: Range, partitions: int, operands: tuple[int, ...]
) -> CutLayer:
    before, after = ranks.start, partitions - ranks.stop

    def everywhere(boxes: Sequence[Box]) -> TensorDistribution:
        shares = [(number, ranks.size) if cut == "samples" and ranks.size > 1 else None for number in range(ranks.size)]
        parts = [Part(box, share) if box.size else None for box, share in zip(boxes, shares, strict=True)]
        return (*[None] * before, *parts, *[None] * after)

    return CutLayer(
        name,
        (*[None] * before, *(piece.layer for piece in pieces), *[None] * after),
        operands,
        tuple(everywhere([piece.inputs[operand] for piece in pieces]) for operand in range(len(operands))),
        everywhere([piece.outputs for piece in pieces]),
        (*({} for _ in range(before)), *(piece.tensors for piece in pieces), *({} for _ in range(after))),
        cut,
    )


def hold(
    shapes: Sequence[tuple[str, tuple[int, ...]]], steps: Iterable[CutLayer], partitions: int
) -> tuple[Layout, tuple[Range, ...]]:
    """Return the layout of the flat vector, in the order of the ranks that hold its parts, and each rank's range.

    A rank holds the tensors that only it takes. Those of several ranks are divided among them, in consecutive ranges of
    the flattened part. `shapes` are the names and shapes of the network's tensors.
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


def balanced(weights: Sequence[float], parts: int) -> list[Range]:
    """Divide items, at least as many as `parts`, into consecutive non-empty runs so that the heaviest is minimal.

    Among such divisions, the sum of the squares of the runs' weights is minimal.
    """
    sums = [0, *accumulate(weights)]
    count = len(weights)
    # best[stop]: heaviest run, sum of squares and runs of the best division of the first `stop` items.
    best = {stop: (sums[stop], sums[stop] ** 2, [Range(0, stop)]) for stop in range(1, count + 1)}
    for part in range(1, parts):
        best = {
            stop: min(
                (
                    max(heaviest, sums[stop] - sums[start]),
                    squares + (sums[stop] - sums[start]) ** 2,
                    [*runs, Range(start, stop)],
                )
                for start, (heaviest, squares, runs) in best.items()
                if start < stop
            )
            for stop in range(part + 1, count + 1)
        }
    return best[count][2]
