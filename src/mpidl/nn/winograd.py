"""Convolution by minimal filtering (Lavin, Gray 2016): a fraction of the multiplications.

A tile of pixels, 6 x 6 for a 3 x 3 kernel and 8 x 8 for a 5 x 5 one, gives 4 x 4 outputs:
Y = A' ((G g G') * (B' d B)) A. The elementwise product, summed over channels, is one matrix product for each position
in a tile. The gradients are the adjoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from math import prod
from typing import NamedTuple

import numpy as np

from mpidl.nn.kernels.cpu import winograd as kernels
from mpidl.nn.kernels.cpu.matrices import matmul
from mpidl.nn.kernels.cpu.winograd import DATA, DATA_ADJOINT, OUTPUTS, OUTPUTS_ADJOINT, POINTS, STEP
from mpidl.nn.layers.workspace import Buffer, Workspace
from mpidl.nn.sliding_windows import SlidingWindows
from mpidl.parameters.ranges import Range

#: Smallest number of channels for which the transforms pay off.
LEAST_CHANNELS = 8
#: Number of elements in the tiles of one block, which stay in the cache.
TILES = 1 << 19
#: Elements between the matrices of a tile's positions, which keep them from competing for one set of the cache.
GAP = 16
#: Largest number of images in one block.
MOST_IMAGES = 64
#: Slices of the images and of the rows: a contiguous part of the outputs.
Block = tuple[slice, slice]


class Tiling(NamedTuple):
    """The tiles on images; all pairs are (vertical, horizontal).

    Attributes
    ----------
    size : int
        Size of the kernel.
    padding, positions : (int, int)
        See `SlidingWindows`.
    tiles : (int, int)
        Number of tiles.
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
        """Number of pixels along a side of a tile."""
        return STEP + self.size - 1

    def whole_tiles(self, rows: Range) -> Range:
        """Return the part of some rows of outputs that consists of whole rows of tiles."""
        start = -(-rows.start // STEP) * STEP
        stop = rows.stop if rows.stop == self.positions[0] else rows.stop // STEP * STEP
        return Range(start, max(start, stop))

    @property
    def places(self) -> int:
        """Number of pixels in a tile."""
        return self.side**2


def choose_tiling(windows: SlidingWindows, width: int) -> Tiling | None:
    """Return the tiles that compute these windows, or None if tiles can't, or would be slower."""
    size = windows.size[0]
    fits = (
        windows.size in ((3, 3), (5, 5)) and windows.stride == (1, 1) and min(windows.channels, width) >= LEAST_CHANNELS
    )
    if not fits:
        return None
    down, across = (-(-count // STEP) for count in windows.positions)
    return Tiling(size, windows.padding, windows.positions, (down, across), windows.channels, width)


def buffers(tiling: Tiling) -> dict[str, Buffer]:
    """Return the buffers that the tiles need."""
    row = tiling.tiles[1] * tiling.places * (tiling.depth + tiling.width)
    shapes = {
        "tiles": (max(row, min(TILES, MOST_IMAGES * tiling.tiles[0] * row)) + 2 * tiling.places * GAP,),
        "kernel": (tiling.places, tiling.depth, tiling.width),
        "kernel_gradient": (tiling.places, tiling.depth, tiling.width),
        "kernel_transposed": (tiling.places, tiling.width, tiling.depth),
        "scratch": (2 * tiling.places * max(tiling.depth, tiling.width),),
    }
    return {name: Buffer(shape, per_sample=False, shape_on_device=(0,)) for name, shape in shapes.items()}


def forward(
    work: Workspace, tiling: Tiling, images: np.ndarray, outputs: np.ndarray, rows: Range | None = None
) -> Iterator[Block]:
    """Set outputs (n, *positions, width) to the convolution of images (n, height, width, depth) plus the bias.

    Only some rows of them, if given: whole rows of tiles, as `Tiling.whole_tiles` returns them, or what is before or
    after these. Yields each block of the outputs when it is done, while it is in the cache.
    """
    kernel, scratch = _transformed(work, tiling), work.buffers["scratch"]
    for at, row, inputs, sums in _blocks(work, tiling, len(images), rows):
        outputs[at] = work.parameters["bias"]
        kernels.transform(DATA, images[at[0]], inputs, row, tiling.padding, scratch)
        matmul(_matrices(inputs), kernel, _matrices(sums))
        kernels.add_transform(OUTPUTS, sums, outputs[at[0]], row, (0, 0), scratch)
        yield at


def backward(
    work: Workspace, tiling: Tiling, images: np.ndarray, output_gradient: Callable[[Block], np.ndarray],
    image_gradient: np.ndarray | None, weights: bool,
) -> None:  # fmt: skip
    """Compute the gradient of the weight if `weights`, and the gradient of the images unless it is None.

    `output_gradient` returns a block of the gradient with respect to the outputs.
    """
    scratch, total, transposed = (work.buffers[name] for name in ("scratch", "kernel_gradient", "kernel_transposed"))
    if image_gradient is not None:
        image_gradient.fill(0)
        transposed[:] = _transformed(work, tiling).transpose(0, 2, 1)
    total.fill(0)
    for at, row, inputs, sums in _blocks(work, tiling, len(images)):
        kernels.transform(OUTPUTS_ADJOINT, output_gradient(at), sums, 0, (0, 0), scratch)
        if weights:
            kernels.transform(DATA, images[at[0]], inputs, row, tiling.padding, scratch)
            matmul(_matrices(inputs).transpose(0, 2, 1), _matrices(sums), total, add=True)
        if image_gradient is not None:
            matmul(_matrices(sums), transposed, _matrices(inputs))
            kernels.add_transform(DATA_ADJOINT, inputs, image_gradient[at[0]], row, tiling.padding, scratch)
    if weights:
        gradient = work.gradients["weight"].reshape(tiling.size**2, -1)
        np.matmul(kernel_matrix(tiling.size, total.dtype.char).T, total.reshape(tiling.places, -1), out=gradient)


def _transformed(work: Workspace, tiling: Tiling) -> np.ndarray:
    """Return G g G' for each pair of channels."""
    kernel: np.ndarray = work.buffers["kernel"]
    weight = work.parameters["weight"].reshape(tiling.size**2, -1)
    np.matmul(kernel_matrix(tiling.size, kernel.dtype.char), weight, out=kernel.reshape(tiling.places, -1))
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


def _blocks(
    work: Workspace, tiling: Tiling, samples: int, of: Range | None = None
) -> Iterator[tuple[Block, int, np.ndarray, np.ndarray]]:
    """Yield blocks of the outputs, their first row of tiles, and the memory for the tiles of inputs and outputs."""
    memory, across = work.buffers["tiles"], tiling.tiles[1]
    tiles = Range(0, tiling.tiles[0]) if of is None else Range(of.start // STEP, -(-of.stop // STEP))
    down = tiles.size
    row, room = across * tiling.places * (tiling.depth + tiling.width), memory.size - 2 * tiling.places * GAP
    rows = min(down, room // row)
    images = min(samples, max(1, room // (down * row)))
    for first in range(0, samples, images):
        some = slice(first, min(samples, first + images))
        for start in range(*tiles, rows):
            shape = (some.stop - first, min(rows, tiles.stop - start), across)
            inputs, rest = _tiles(memory, tiling.places, (*shape, tiling.depth))
            sums, _ = _tiles(rest, tiling.places, (*shape, tiling.width))
            yield (some, slice(start * STEP, min(tiling.positions[0], (start + shape[1]) * STEP))), start, inputs, sums


def _tiles(memory: np.ndarray, places: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return an array (places, *shape) with gaps between the places, and the memory after it."""
    size = prod(shape)
    end = places * (size + GAP)
    return memory[:end].reshape(places, -1)[:, :size].reshape(places, *shape), memory[end:]
