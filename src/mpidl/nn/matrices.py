"""The tensors that a rule of whole matrices updates, and those that its other rule does."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from mpidl.errors import UsageError
from mpidl.nn.groups import Group, group_of, trained_parts
from mpidl.nn.model import CompleteModel
from mpidl.parameters.layout import Layout, Slice
from mpidl.parameters.ranges import Range
from mpidl.rules.segments import Matrix, Segment
from mpidl.rules.tensors import TensorRule

#: Axes of the smallest matrix.
AXES = 2


def hidden(model: CompleteModel) -> list[str]:
    """Return the names of a model's hidden matrices: all weights except embeddings and the last one, the head."""
    parts = trained_parts(model.layout, model.statistics)
    wide = [part.name for part in parts if len(part.shape) >= AXES]
    return [name for name in wide[:-1] if name not in model.embeddings and "embed" not in name.lower()]


def as_matrix(shape: Sequence[int], outputs_last: bool) -> Matrix:
    """Return a weight as a matrix of its outputs and of its inputs, to which the other axes of convolutions count."""
    if outputs_last:
        return Matrix(prod(shape[:-1]), shape[-1], transposed=True)
    return Matrix(shape[0], prod(shape[1:]))


def segments_by_tensors(
    rule: TensorRule, groups: Sequence[Group], layout: Layout, statistics: Sequence[Range], model: CompleteModel
) -> list[Segment]:
    """Return segments that cover all trained parameters in a vector of this layout, which has the model's tensors.

    Raises
    ------
    UsageError
        A rank has only a part of a matrix, or a group asks for a matrix of a vector.
    """
    found: list[Segment] = []
    names = hidden(model)
    for part in (each for each in layout if not any(each.range.intersect(own) for own in statistics)):
        segment = _segment(rule, group_of(groups, part.name), part, layout, names, model)
        last = found[-1] if found else None
        if last is not None and last.range.stop == part.start and last[1:] == segment[1:] and segment.matrix is None:
            segment = segment._replace(range=Range(found.pop().range.start, part.stop))
        found.append(segment)
    return found


def _segment(
    rule: TensorRule, group: Group | None, part: Slice, layout: Layout, names: Sequence[str], model: CompleteModel
) -> Segment:
    """Return the segment of a tensor, or of the part of it that is at one place."""
    group = group or Group(part.name)
    shape = layout.shapes[part.name]
    whole = part.name in names if group.matrix is None else group.matrix
    if not whole:
        factor = group.rate * rule.other_factor
        return Segment(part.range, factor, group.weight_decay, group.frozen, rule.other)
    if len(shape) < AXES:
        raise UsageError(f"model.group: matrix: {part.name} has the shape {tuple(shape)}, expected at least {AXES} axes")
    if part.size != prod(shape):
        raise UsageError(
            f"topology.partitions: cuts {part.name}, of which {rule.name} needs the whole, expected stages alone"
        )
    matrix = as_matrix(shape, model.outputs_last)
    return Segment(part.range, group.rate, group.weight_decay, group.frozen, None, matrix)
