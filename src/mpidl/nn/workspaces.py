"""The arrays that a network computes with, allocated once and reused by every batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from mpidl.nn.layers.layer import Buffer, Shape, Workspace

#: Alignment of scratch arrays, in bytes.
ALIGNMENT = 64


class Pass(NamedTuple):
    """The arrays of a forward and a backward pass over n samples: views of the memory of `Passes`.

    Attributes
    ----------
    values, gradients : list of array (n, *shape)
        The outputs of each layer, and the gradients of the loss with respect to them.
    spares : list of array (n, *shape) or None
        A second array for the gradient with respect to a layer's outputs, if several layers take them.
    workspaces : list of Workspace
        The workspace of each layer.
    """

    values: list[Any]
    gradients: list[Any]
    spares: list[Any]
    workspaces: list[Workspace]


class Passes:
    """Memory for the largest batch so far; smaller batches get views of it.

    Parameters
    ----------
    xp
        NumPy or CuPy.
    dtype
        Dtype of outputs and gradients.
    input_shape, shapes
        Shapes of one sample of the inputs, and of each layer's outputs.
    shared
        Whether several layers take a layer's outputs, for each layer.
    buffers
        The buffers of each layer.
    workspace : callable
        Returns a layer's workspace for the layer's index and buffers.
    """

    def __init__(
        self,
        xp: Any,
        dtype: str,
        input_shape: Shape,
        shapes: Sequence[Shape],
        shared: Sequence[bool],
        buffers: Sequence[dict[str, Buffer]],
        workspace: Callable[[int, dict[str, Any]], Workspace],
    ) -> None:
        self._xp, self._dtype, self._workspace = xp, dtype, workspace
        self._input_shape, self._shapes, self._shared = input_shape, shapes, shared
        self._buffers = buffers if xp is np else [_on_device(each) for each in buffers]
        self._samples = 0
        self._passes: dict[int, Pass] = {}
        self._inputs: Any = None

    def take(self, samples: int) -> Pass:
        """Return the arrays for this number of samples, the same ones at every call."""
        found = self._passes.get(samples)
        if found is None:
            if samples > self._samples:
                self._allocate(samples)
            found = self._passes[samples] = self._cut(samples)
        return found

    def nbytes(self, samples: int) -> int:
        """Return the bytes that `take` would allocate for this number of samples."""
        itemsize: int = self._xp.dtype(self._dtype).itemsize
        bytes_per_sample = itemsize * (2 * sum(map(prod, self._shapes)) + self._spare_size())
        kept = 0
        for each in (each for layer in self._buffers for each in layer.values()):
            nbytes = prod(each.shape) * self._xp.dtype(each.dtype or self._dtype).itemsize
            if each.per_sample:
                bytes_per_sample += nbytes
            elif each.kept:
                kept += nbytes
        return samples * bytes_per_sample + kept + self._scratch_bytes()

    def converted(self, inputs: Any) -> Any:
        """Return a batch of inputs in the network's dtype: the inputs themselves or a copy."""
        if inputs.dtype == self._dtype:
            return inputs
        if self._inputs is None or len(self._inputs) < len(inputs):
            self._inputs = self._xp.empty((len(inputs), *self._input_shape), self._dtype)
        copy = self._inputs[: len(inputs)]
        self._xp.copyto(copy, inputs)
        return copy

    def _allocate(self, samples: int) -> None:
        empty, dtype = self._xp.empty, self._dtype
        self._samples = samples
        self._passes.clear()
        self._values = [empty((samples, *shape), dtype) for shape in self._shapes]
        self._gradients = [empty((samples, *shape), dtype) for shape in self._shapes]
        self._spare = empty(samples * self._spare_size(), dtype)
        self._kept = [
            {
                name: empty((samples, *each.shape) if each.per_sample else each.shape, each.dtype or dtype)
                for name, each in layer.items()
                if each.per_sample or each.kept
            }
            for layer in self._buffers
        ]
        # All layers share one scratch memory, which stays in the cache from one layer to the next.
        self._scratch = empty(self._scratch_bytes(), "uint8")

    def _spare_size(self) -> int:
        return max((prod(shape) for shape, shared in zip(self._shapes, self._shared, strict=True) if shared), default=0)

    def _scratch_bytes(self) -> int:
        return max((end for layer in self._buffers for *_, end in self._places(layer)), default=0)

    def _places(self, buffers: dict[str, Buffer]) -> list[tuple[str, Buffer, int, int]]:
        """Return name, buffer, first byte and end of each of a layer's scratch arrays in the scratch memory."""
        places, start = [], 0
        for name, each in buffers.items():
            if not each.per_sample and not each.kept:
                end = start + prod(each.shape) * self._xp.dtype(each.dtype or self._dtype).itemsize
                places.append((name, each, start, end))
                start = -(-end // ALIGNMENT) * ALIGNMENT
        return places

    def _cut(self, samples: int) -> Pass:
        workspaces = []
        for index, (kept, buffers) in enumerate(zip(self._kept, self._buffers, strict=True)):
            views = {name: array[:samples] if buffers[name].per_sample else array for name, array in kept.items()}
            for name, each, start, end in self._places(buffers):
                views[name] = self._scratch[start:end].view(each.dtype or self._dtype).reshape(each.shape)
            workspaces.append(self._workspace(index, views))
        spares = [
            self._spare[: samples * prod(shape)].reshape(samples, *shape) if shared else None
            for shape, shared in zip(self._shapes, self._shared, strict=True)
        ]
        return Pass(
            [array[:samples] for array in self._values],
            [array[:samples] for array in self._gradients],
            spares,
            workspaces,
        )


def _on_device(buffers: dict[str, Buffer]) -> dict[str, Buffer]:
    """Return a layer's buffers on a GPU."""
    return {
        name: each if each.shape_on_device is None else each._replace(shape=each.shape_on_device)
        for name, each in buffers.items()
    }
