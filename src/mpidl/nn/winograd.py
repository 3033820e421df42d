"""Convolution by minimal filtering (Lavin, Gray 2016): a fraction of the multiplications.

A tile of pixels, 6 x 6 for a 3 x 3 kernel and 8 x 8 for a 5 x 5 one, gives 4 x 4 outputs:
Y = A' ((G g G') * (B' d B)) A. The product is taken place by place and summed over channels: a matrix product for each
place of a tile. The gradients are the adjoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from math import prod
from typing import NamedTuple

import numpy as np

from mpidl.nn.kernels.cpu import winograd as loops
from mpidl.nn.kernels.cpu.minimal_filtering import POINTS, STEP
from mpidl.nn.kernels.cpu.products import multiply
from mpidl.nn.layers.layer import Buffer, Workspace
from mpidl.nn.windows import Windows

#: Channels that are worth the transforms.
LEAST_CHANNELS = 8
#: Elements of the tiles that are worked on at a time: they stay in cache.
TILES = 1 << 19
#: Elements between the places of tiles: without, places that are written in turn may share one set of a cache.
GAP = 16
#: Small images are worked on so many at a time, at most.
MOST_IMAGES = 64
#: Images, and rows of their positions: a contiguous part of the outputs.
Place = tuple[slice, slice]


class Tiling(NamedTuple):
    """How tiles lie on images.

    Attributes
    ----------
    size : int
        Of the kernel.
    padding, positions, tiles : (int, int)
        See `Windows`; how many tiles there are, vertically and horizontally.
    depth, width : int
        Channels of inputs and outputs.
    """

    size: int
    padding: tuple[int, int]
    positions: tuple[int, int]
    tiles: tuple[int, int]
    depth: int
    width: int

    @property
    def side(self) -> int:
        """Pixels along a tile."""
        return STEP + self.size - 1

    @property
    def places(self) -> int:
        """Pixels of a tile."""
        return self.side**2


def tiling(of: Windows, width: int) -> Tiling | None:
    """Return how windows are computed by tiles; None if they can't, or had better not be."""
    size = of.size[0]
    fits = of.size in ((3, 3), (5, 5)) and of.stride == (1, 1) and min(of.channels, width) >= LEAST_CHANNELS
    if not fits:
        return None
    down, across = (-(-count // STEP) for count in of.positions)
    return Tiling(size, of.padding, of.positions, (down, across), of.channels, width)


def buffers(of: Tiling) -> dict[str, Buffer]:
    """Return the memory that the tiles need."""
    row = of.tiles[1] * of.places * (of.depth + of.width)
    shapes = {
        "tiles": (max(row, min(TILES, MOST_IMAGES * of.tiles[0] * row)) + 2 * of.places * GAP,),
        "kernel": (of.places, of.depth, of.width),
        "kernel_gradient": (of.places, of.depth, of.width),
        "kernel_transposed": (of.places, of.width, of.depth),
        "lines": (2 * of.places * max(of.depth, of.width),),
    }
    return {name: Buffer(shape, per_sample=False, shape_on_device=(0,)) for name, shape in shapes.items()}


def forward(work: Workspace, of: Tiling, images: np.ndarray, outputs: np.ndarray) -> Iterator[Place]:
    """Set outputs (n, *of.positions, width) to the convolution of images (n, height, width, depth), and the bias.

    Yields which part of the outputs is done, while it is in the cache.
    """
    kernel, lines = _transformed(work, of), work.buffers["lines"]
    for at, row, inputs, sums in _blocks(work, of, len(images)):
        outputs[at] = work.parameters["bias"]
        loops.transform_data(images[at[0]], inputs, row, of.padding, lines)
        multiply(_matrices(inputs), kernel, _matrices(sums))
        loops.add_outputs(sums, outputs[at[0]], row, lines)
        yield at


def backward(
    work: Workspace,
    of: Tiling,
    images: np.ndarray,
    output_gradient: Callable[[Place], np.ndarray],
    image_gradient: np.ndarray | None,
) -> None:
    """Set the weight's gradient and, if asked for, that with respect to the images.

    `output_gradient` returns a part of the gradient with respect to the outputs.
    """
    lines, total, transposed = (work.buffers[name] for name in ("lines", "kernel_gradient", "kernel_transposed"))
    if image_gradient is not None:
        image_gradient.fill(0)
        transposed[:] = _transformed(work, of).transpose(0, 2, 1)
    total.fill(0)
    for at, row, inputs, sums in _blocks(work, of, len(images)):
        loops.transform_outputs_adjoint(output_gradient(at), sums, 0, lines)
        loops.transform_data(images[at[0]], inputs, row, of.padding, lines)
        multiply(_matrices(inputs).transpose(0, 2, 1), _matrices(sums), total, add=True)
        if image_gradient is not None:
            multiply(_matrices(sums), transposed, _matrices(inputs))
            loops.add_data_adjoint(inputs, image_gradient[at[0]], row, of.padding, lines)
    weight_gradient = work.gradients["weight"].reshape(of.size**2, -1)
    np.matmul(kernel_matrix(of.size, total.dtype.char).T, total.reshape(of.places, -1), out=weight_gradient)


def _transformed(work: Workspace, of: Tiling) -> np.ndarray:
    """Return G g G' for each pair of channels."""
    kernel: np.ndarray = work.buffers["kernel"]
    weight = work.parameters["weight"].reshape(of.size**2, -1)
    np.matmul(kernel_matrix(of.size, kernel.dtype.char), weight, out=kernel.reshape(of.places, -1))
    return kernel


@cache
def kernel_matrix(size: int, dtype: str) -> np.ndarray:
    """Return the matrix of g -> G g G'."""
    points = [0.0, *(sign * point for point in POINTS[STEP + size - 1] for sign in (1, -1))]
    rows = [
        [point**power / np.prod([point - other for other in points if other != point]) for power in range(size)]
        for point in points
    ]
    last = [0.0] * (size - 1) + [1.0]
    g = np.array([*rows, last])
    return np.kron(g, g).astype(dtype)


def _matrices(tiles: np.ndarray) -> np.ndarray:
    return tiles.reshape(len(tiles), -1, tiles.shape[-1])


def _blocks(work: Workspace, of: Tiling, samples: int) -> Iterator[tuple[Place, int, np.ndarray, np.ndarray]]:
    """Yield part of the outputs, first row of tiles, and memory for both sides' tiles: what fits at a time."""
    memory, (down, across) = work.buffers["tiles"], of.tiles
    row, room = across * of.places * (of.depth + of.width), memory.size - 2 * of.places * GAP
    rows = min(down, room // row)
    images = min(samples, max(1, room // (down * row)))
    for first in range(0, samples, images):
        some = slice(first, min(samples, first + images))
        for start in range(0, down, rows):
            shape = (some.stop - first, min(rows, down - start), across)
            inputs, rest = _tiles(memory, of.places, (*shape, of.depth))
            sums, _ = _tiles(rest, of.places, (*shape, of.width))
            yield (some, slice(start * STEP, min(of.positions[0], (start + shape[1]) * STEP))), start, inputs, sums


def _tiles(memory: np.ndarray, places: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return an array (places, *shape) in memory, with gaps between the places, and the memory behind it."""
    size = prod(shape)
    end = places * (size + GAP)
    return memory[:end].reshape(places, -1)[:, :size].reshape(places, *shape), memory[end:]
