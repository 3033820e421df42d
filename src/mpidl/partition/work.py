"""A layer's work, cut over ranks."""

from __future__ import annotations

from collections.abc import Sequence

from mpidl.nn.layers.layer import Layer, Piece
from mpidl.nn.layers.workspace import Shape
from mpidl.parameters.box import Box
from mpidl.parameters.ranges import Range
from mpidl.partition.plan import Distribution, Part, Step


def cut_layer(
    layer: Layer, name: str, how: str, ranks: Range, partitions: int, shapes: Sequence[Shape]
) -> tuple[Step, ...]:
    """Return the steps of a layer that is cut over some of the ranks.

    Parameters
    ----------
    layer, name
        The uncut layer and its name.
    how
        One of `Layer.cuts`, or "samples".
    ranks
        The ranks that share the work.
    partitions
        Number of all ranks.
    shapes
        Shapes of its operands, for one sample.

    Returns
    -------
    tuple of Step
        One, or two of which the second takes the first one's value. Operands are counted from 0, and the first step's
        value follows them.

    Raises
    ------
    UsageError
        If it can't be cut like this.
    """
    by_number = [layer.pieces(how, number, ranks.size, *shapes) for number in range(ranks.size)]
    operands = [tuple(range(len(shapes))), (len(shapes),)]
    steps = []
    for pieces, taken in zip(zip(*by_number, strict=True), operands, strict=False):
        steps.append(_step(name, how, pieces, ranks, partitions, taken))
    return tuple(steps)


def _step(
    name: str, how: str, pieces: Sequence[Piece], ranks: Range, partitions: int, operands: tuple[int, ...]
) -> Step:
    before, after = ranks.start, partitions - ranks.stop

    def everywhere(boxes: Sequence[Box]) -> Distribution:
        shares = [(number, ranks.size) if how == "samples" and ranks.size > 1 else None for number in range(ranks.size)]
        parts = [Part(box, share) if box.size else None for box, share in zip(boxes, shares, strict=True)]
        return (*[None] * before, *parts, *[None] * after)

    return Step(
        name,
        (*[None] * before, *(piece.layer for piece in pieces), *[None] * after),
        operands,
        tuple(everywhere([piece.inputs[operand] for piece in pieces]) for operand in range(len(operands))),
        everywhere([piece.outputs for piece in pieces]),
        (*({} for _ in range(before)), *(piece.tensors for piece in pieces), *({} for _ in range(after))),
        how,
    )
