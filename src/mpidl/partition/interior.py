"""What of a layer can be computed before anything arrives from other ranks."""

from __future__ import annotations

from mpidl.nn.layers.layer import Layer
from mpidl.parameters.ranges import Range
from mpidl.partition.plan import Moving, Plan, boxes_of
from mpidl.partition.transfer import Transfer

#: Least number of operations of rows that are computed apart, a third of a millisecond. To compute them apart takes up
#: to 50 microseconds, as much as a message takes between nodes.
WORTH = 20_000_000


def interior(layer: Layer, transfer: Transfer, rank: int) -> Range:
    """Return the rows of a layer's outputs that depend on nothing that comes from other ranks.

    Parameters
    ----------
    layer : Layer
        What the rank computes.
    transfer : Transfer
        What brings the layer's inputs (samples, height, ...).
    rank : int

    Returns
    -------
    Range
        Empty if there are too few, if the layer computes all its rows at once, or if nothing comes from other ranks.
    """
    nothing = Range(0, 0)
    if layer.joins or len(transfer.target[rank]) != 1 or not transfer.received(rank):
        return nothing
    (whole,), (summands, _) = transfer.target[rank], transfer.summands(rank)
    if any(each.added for each in summands):
        return nothing
    found = nothing
    for box in (box for each in summands if each.rank == rank for box in each.copied):
        # Rows are the first axis of a sample.
        if all(own == its for axis, (own, its) in enumerate(zip(box.ranges, whole.ranges, strict=True)) if axis != 1):
            rows = box.ranges[1].shift(-whole.ranges[1].start)
            found = max(found, layer.rows_from(rows, whole.shape[1:]), key=lambda some: some.size)
    shape = whole.shape[1:]
    operations = layer.operations(shape) * whole.shape[0] * found.size if found.size else 0
    return found if operations >= WORTH * layer.output_shape(shape)[0] else nothing


def interior_parts(plan: Plan, moving: Moving, samples: int) -> list[float]:
    """Return which part of its outputs each rank computes while a value is on its way to the layer that takes it."""
    found = [0.0] * plan.partitions
    if moving.taker == len(plan.steps):
        return found
    step = plan.steps[moving.taker]
    transfer = Transfer(boxes_of(moving.source, samples), boxes_of(moving.target, samples))
    for rank, (layer, given) in enumerate(zip(step.layers, step.given, strict=True)):
        if layer is not None and given is not None and len(given.box.shape) > 1:
            found[rank] = interior(layer, transfer, rank).size / max(1, given.box.shape[0])
    return found
