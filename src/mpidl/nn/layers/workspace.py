"""The memory that a layer works on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from mpidl.tables.lookups import Lookup

Shape = tuple[int, ...]


class Buffer(NamedTuple):
    """Memory that a layer needs.

    Attributes
    ----------
    shape
        Shape for one sample, or the whole shape if not `per_sample`.
    dtype
        The network's dtype if None.
    per_sample
        Whether the buffer has a first axis for the samples and keeps its values from `forward` to `backward`. Other
        buffers are scratch space that any layer may overwrite.
    kept
        Whether a buffer that isn't per sample also keeps its values.
    shape_on_device
        Shape on a GPU, if it differs: arrays that fit in a CPU's cache would leave most of a GPU idle.
    """

    shape: Shape
    dtype: str | None = None
    per_sample: bool = True
    kept: bool = False
    shape_on_device: Shape | None = None


class Sums(Protocol):
    """The ranks that compute parts of one layer.

    Attributes
    ----------
    rank : int
        This rank's number among them.
    """

    rank: int

    def sum(self, array: Any) -> None:
        """Replace an array by its sum over the ranks, in their order: the same bits on all."""


class Workspace(Struct):
    """The arrays that a layer computes with: C-contiguous, and owned by the network.

    Attributes
    ----------
    xp
        NumPy or CuPy.
    kernels
        The loops of `mpidl.nn.kernels` for arrays of `xp`.
    parameters, gradients
        The layer's tensors by name: views of the network's flat vectors, float32 or float64.
    buffers
        Arrays by name, as requested by `Layer.buffers`.
    training
        Whether a gradient will be computed, or only the outputs.
    key
        Returns the key of random numbers, four integers of 32 bits, which depends only on the network's seed, the layer
        and the batch.
    first, strides
        Position of the outputs in those of the uncut layer for the whole batch, (samples, *shape): the index of their
        first element, and the distance of neighbours along each axis, in elements. None: they are the whole array.
    group
        The ranks that compute parts of the layer, if it has statistics of all; otherwise None. Since the gradients of
        all ranks are added up, only the first rank computes those of the statistics.
    look_up
        Returns the rows of ids in the layer's table, if it has one.
    found
        What it has returned in `forward`.
    """

    xp: Any
    kernels: Any
    parameters: dict[str, Any]
    gradients: dict[str, Any]
    buffers: dict[str, Any]
    training: bool
    key: Callable[[], Sequence[int]]
    first: int = 0
    strides: tuple[int, ...] | None = None
    group: Sums | None = None
    look_up: Callable[[Any], Lookup] | None = None
    found: Lookup | None = None
