"""The arrays that a network computes with, allocated once and reused by every batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from mpidl.data.ragged import Ragged
from mpidl.nn.graph import Node, Value, part_of
from mpidl.nn.layers.layer import ByRows, Layer
from mpidl.nn.layers.workspace import Buffer, Workspace
from mpidl.parameters.ranges import Range


class Call(Struct):
    """A layer with all arrays (n, *shape) of a forward and a backward pass, a list of them for its operands.

    Attributes
    ----------
    input_gradients : list of array or None
        The arrays for the gradients of the inputs; None for those that aren't needed.
    additions : list of (array, array)
        Gradients to which the layer's are then added, each with the layer's.
    """

    layer: Layer
    workspace: Workspace
    inputs: list[Any]
    outputs: Any
    output_gradient: Any
    input_gradients: list[Any]
    additions: list[tuple[Any, Any]]

    def forward(self) -> None:
        """Compute the layer's outputs."""
        inputs = self.inputs if self.layer.joins else self.inputs[0]
        self.layer.forward(self.workspace, inputs, self.outputs)

    def forward_rows(self, rows: Range) -> None:
        """Compute some rows of the outputs of a `ByRows` layer, before `end_rows`."""
        assert isinstance(self.layer, ByRows)
        self.layer.forward_rows(self.workspace, self.inputs[0], self.outputs, rows)

    def end_rows(self) -> None:
        """Complete the outputs after all rows have been computed."""
        assert isinstance(self.layer, ByRows)
        self.layer.end_rows(self.workspace, self.outputs)

    def backward(self) -> None:
        """Compute the gradients with respect to the layer's parameters and inputs."""
        self._backward(self.layer.backward)

    def backward_inputs(self) -> None:
        """Compute only the gradients with respect to the layer's inputs."""
        self._backward(self.layer.backward_inputs)

    def backward_weights(self) -> None:
        """Compute only the gradients with respect to the layer's parameters, after `backward_inputs`."""
        inputs = self.inputs if self.layer.joins else self.inputs[0]
        self.layer.backward_weights(self.workspace, inputs, self.output_gradient)

    def _backward(self, backward: Callable[..., None]) -> None:
        joins = self.layer.joins
        inputs, gradients = (each if joins else each[0] for each in (self.inputs, self.input_gradients))
        backward(self.workspace, inputs, self.outputs, self.output_gradient, gradients)
        for gradient, summand in self.additions:
            gradient += summand


#: Alignment of scratch arrays, in bytes.
ALIGNMENT = 64


class _Arrays(NamedTuple):
    """The arrays of a slot for the largest batch: values, their gradients, and each layer's kept buffers."""

    values: list[Any]
    gradients: list[Any]
    kept: list[dict[str, Any]]


class Pass(NamedTuple):
    """The arrays of a forward and a backward pass over n samples: views of the memory of `Passes`.

    Attributes
    ----------
    values, gradients : list of array (n, *shape) or None
        The values, and the gradients of the loss with respect to them; None for the network's inputs.
    calls : list of Call
        The layers, in the order of the forward pass.
    slot : int
        The slot of `Passes.take`.
    """

    values: list[Any]
    gradients: list[Any]
    calls: list[Call]
    slot: int


class Passes:
    """Memory for the largest batch so far; smaller batches get views of it.

    Parameters
    ----------
    xp
        NumPy or CuPy.
    dtype
        Dtype of values and gradients.
    nodes : sequence of Node
        In the order of the forward pass.
    workspace : callable
        Returns a layer's workspace for the index of its node and its buffers.
    """

    def __init__(
        self, xp: Any, dtype: str, values: Sequence[Value], nodes: Sequence[Node],
        workspace: Callable[[int, dict[str, Any]], Workspace],
    ) -> None:  # fmt: skip
        self._xp, self._dtype, self._workspace = xp, dtype, workspace
        self._specified, self._nodes = values, nodes
        self._inputs = [index for index, value in enumerate(values) if value.inputs is not None]
        self._taken = [index for index in self._inputs if any(index in node.operands for node in nodes)]
        # For each layer, the values whose gradients others have computed before it in the backward pass.
        self._shared = [
            [v for v, first in zip(node.operands, node.first, strict=True) if not first and v not in self._inputs]
            for node in nodes
        ]
        buffers = [node.layer.buffers(*(values[value].shape for value in node.operands)) for node in nodes]
        self._buffers = buffers if xp is np else [_on_device(each) for each in buffers]
        self._largest = 0
        self._passes: dict[tuple[int, int], Pass] = {}
        self._slots: dict[int, _Arrays] = {}
        self._copies: dict[tuple[int, int, str], Any] = {}

    def take(self, samples: int, slot: int = 0) -> Pass:
        """Return the arrays for this number of samples, the same ones until a call with more samples.

        Passes at the same time need different slots, which share only scratch memory.
        """
        found = self._passes.get((samples, slot))
        if found is None:
            if samples > self._largest:
                self._allocate(samples)
            if slot not in self._slots:
                self._slots[slot] = self._allocate_slot()
            found = self._passes[samples, slot] = self._cut(samples, slot)
        return found

    def feed(self, work: Pass, inputs: Any) -> None:
        """Set the inputs (n, *input_shape) of the layers of a pass, or a copy of them in another dtype."""
        parts = {index: self._part(index, inputs, work.slot) for index in self._taken}
        for node, call in zip(self._nodes, work.calls, strict=True):
            for position, index in enumerate(node.operands):
                if index in parts:
                    call.inputs[position] = parts[index]

    def nbytes(self, samples: int, slots: int = 1) -> int:
        """Return the bytes that `take` allocates for this number of samples and of slots."""
        own = set(range(len(self._specified))).difference(self._inputs)
        found = 2 * sum(self._elements(index, samples) for index in own) * self._itemsize(None)
        for node, buffers in zip(self._nodes, self._buffers, strict=True):
            count = self._specified[node.output].samples(samples).size
            for each in buffers.values():
                if each.per_sample or each.kept:
                    found += (count if each.per_sample else 1) * prod(each.shape) * self._itemsize(each.dtype)
        return slots * found + self._scratch_bytes() + self._spare_size(samples) * self._itemsize(None)

    def _part(self, index: int, inputs: Any, slot: int) -> Any:
        """Return a part of the inputs: a view, or a copy if its dtype or its order differs."""
        value = self._specified[index]
        assert value.inputs is not None
        part = part_of(inputs, value.inputs, value.samples(len(inputs)))
        if isinstance(part, Ragged):
            return part
        dtype = part.dtype.name if value.as_is else self._dtype
        if part.dtype == dtype and part.flags.c_contiguous:
            return part
        memory = self._copies.get((slot, index, dtype))
        if memory is None or len(memory) < len(part):
            memory = self._copies[slot, index, dtype] = self._xp.empty(part.shape, dtype)
        copy = memory[: len(part)]
        self._xp.copyto(copy, part)
        return copy

    def _allocate(self, samples: int) -> None:
        self._largest = samples
        self._passes.clear()
        self._slots.clear()
        self._spare = self._xp.empty(self._spare_size(samples), self._dtype)
        # All layers share one scratch memory, so that it stays in the cache.
        self._scratch = self._xp.empty(self._scratch_bytes(), "uint8")

    def _allocate_slot(self) -> _Arrays:
        empty, dtype = self._xp.empty, self._dtype
        own = [value.samples(self._largest).size for value in self._specified]
        shapes = [(n, *value.shape) for n, value in zip(own, self._specified, strict=True)]
        values, gradients = (
            [None if index in self._inputs else empty(shape, dtype) for index, shape in enumerate(shapes)]
            for _ in range(2)
        )
        kept = [
            {
                name: empty((own[node.output], *each.shape) if each.per_sample else each.shape, each.dtype or dtype)
                for name, each in buffers.items()
                if each.per_sample or each.kept
            }
            for node, buffers in zip(self._nodes, self._buffers, strict=True)
        ]
        return _Arrays(values, gradients, kept)

    def _itemsize(self, dtype: str | None) -> int:
        return int(self._xp.dtype(dtype or self._dtype).itemsize)

    def _elements(self, index: int, samples: int) -> int:
        value = self._specified[index]
        return value.samples(samples).size * prod(value.shape)

    def _spare_size(self, samples: int) -> int:
        sizes = (sum(self._elements(index, samples) for index in shared) for shared in self._shared)
        return max(sizes, default=0)

    def _scratch_bytes(self) -> int:
        return max((end for layer in self._buffers for *_, end in self._places(layer)), default=0)

    def _places(self, buffers: dict[str, Buffer]) -> list[tuple[str, Buffer, int, int]]:
        """Return name, buffer, first byte and end of each of a layer's scratch arrays in the scratch memory."""
        places, start = [], 0
        for name, each in buffers.items():
            if not each.per_sample and not each.kept:
                end = start + prod(each.shape) * self._itemsize(each.dtype)
                places.append((name, each, start, end))
                start = -(-end // ALIGNMENT) * ALIGNMENT
        return places

    def _cut(self, samples: int, slot: int) -> Pass:
        own = [value.samples(samples).size for value in self._specified]
        values, gradients = (
            [None if array is None else array[:n] for array, n in zip(arrays, own, strict=True)]
            for arrays in (self._slots[slot].values, self._slots[slot].gradients)
        )
        calls = []
        for number, node in enumerate(self._nodes):
            workspace = self._workspace(number, self._views(number, own[node.output], slot))
            call = Call(node.layer, workspace, [], values[node.output], gradients[node.output], [], [])
            start = 0
            for index in node.operands:
                target: Any = gradients[index]
                if index in self._shared[number]:
                    stop = start + target.size
                    call.additions.append((target, self._spare[start:stop].reshape(target.shape)))
                    start, target = stop, call.additions[-1][1]
                call.inputs.append(values[index])
                call.input_gradients.append(target)
            calls.append(call)
        return Pass(values, gradients, calls, slot)

    def _views(self, number: int, samples: int, slot: int) -> dict[str, Any]:
        """Return a layer's buffers for this number of samples."""
        buffers, kept = self._buffers[number], self._slots[slot].kept[number]
        found = {name: array[:samples] if buffers[name].per_sample else array for name, array in kept.items()}
        for name, each, start, end in self._places(buffers):
            found[name] = self._scratch[start:end].view(each.dtype or self._dtype).reshape(each.shape)
        return found


def _on_device(buffers: dict[str, Buffer]) -> dict[str, Buffer]:
    """Return a layer's buffers on a GPU."""
    return {
        name: each if each.shape_on_device is None else each._replace(shape=each.shape_on_device)
        for name, each in buffers.items()
    }
