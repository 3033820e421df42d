"""The tensors that a rule of whole matrices updates, and those that its other rule does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from mpidl.errors import UsageError
from mpidl.nn.groups import Group, frozen_names, group_of, trained_parts
from mpidl.nn.model import CompleteModel
from mpidl.parameters.layout import Layout
from mpidl.parameters.ranges import Range
from mpidl.rules.segments import Matrix, Segment
from mpidl.rules.tensors import TensorRule

#: Axes of a matrix.
AXES = 2
#: Parts of the names of tensors whose rows are looked up or added, if a model doesn't tell.
ROWS = ("embed", "position")


def matrices(groups: Sequence[Group], model: CompleteModel) -> dict[str, Matrix]:
    """Return the trained matrices of a model by their names: those of groups and, by default, the hidden ones.

    Weights have at least two axes. Hidden ones are all but those of embeddings and the last one, that of the head.

    Raises
    ------
    UsageError
        A group asks for a matrix of a tensor with fewer axes.
    """
    parts = trained_parts(model.layout, model.statistics)
    weights = [part.name for part in parts if len(part.shape) >= AXES]
    hidden = {
        name for name in weights[:-1] if name not in model.embeddings and not any(each in name.lower() for each in ROWS)
    }
    found = {}
    for part in parts:
        group = group_of(groups, part.name)
        asked = None if group is None else group.matrix
        if group is not None and asked and part.name not in weights:
            line = f"model.group: match: {group.match!r}: {part.name} has the shape {part.shape}"
            raise UsageError(f"{line}, but matrix is true, expected at least 2 axes")
        if (part.name in hidden if asked is None else asked) and not (group is not None and group.frozen):
            found[part.name] = as_matrix(part.shape, model.outputs_last)
    return found


def as_matrix(shape: Sequence[int], outputs_last: bool) -> Matrix:
    """Return a weight as a matrix of its outputs and of its inputs, to which the other axes of convolutions count."""
    if outputs_last:
        return Matrix(prod(shape[:-1]), shape[-1], transposed=True)
    return Matrix(shape[0], prod(shape[1:]))


def segments_by_tensors(
    rule: TensorRule, groups: Sequence[Group], layout: Layout, statistics: Sequence[Range], found: Mapping[str, Matrix]
) -> list[Segment]:
    """Return segments that cover all parameters in a vector of this layout, statistics left out.

    Raises
    ------
    UsageError
        A rank has only a part of one of the matrices that were `found`.
    """
    segments: list[Segment] = []
    for part in (each for each in layout if not any(each.range.intersect(own) for own in statistics)):
        group, matrix = group_of(groups, part.name) or Group(part.name), found.get(part.name)
        if matrix is not None and part.size != prod(matrix.shape):
            line = f"topology.partitions: cuts {part.name}, which {rule.name} needs whole"
            raise UsageError(f"{line}, expected as many topology.stages as partitions")
        other, factor = (None, 1.0) if matrix is not None else (rule.other, rule.other_factor)
        segment = Segment(part.range, group.rate * factor, group.weight_decay, group.frozen, other, matrix)
        if segments and matrix is None and segments[-1].range.stop == part.start and segments[-1][1:] == segment[1:]:
            segment = segment._replace(range=Range(segments.pop().range.start, part.stop))
        segments.append(segment)
    return segments


def rules_of_tensors(rule: TensorRule | None, groups: Sequence[Group], model: CompleteModel) -> dict[str, str]:
    """Return the name of the rule of each trained tensor, with a rule of whole tensors; otherwise nothing."""
    if rule is None:
        return {}
    found, frozen = matrices(groups, model), frozen_names(groups, model.layout)
    names = (part.name for part in trained_parts(model.layout, model.statistics) if part.name not in frozen)
    return {name: (rule if name in found else rule.other).name for name in names}
