"""The windows of images; see `mpidl.nn.kernels.cpu.patches`."""

from __future__ import annotations

from math import prod
from typing import Any

from mpidl.nn.kernels.cuda.source import Source

SOURCE = Source("patches", "windows")


def gather_patches(images: Any, patches: Any, of: Any, row: int, channel: int) -> None:
    """See the CPU's."""
    _, height, width, channels = images.shape
    geometry = (height, width, channels, *patches.shape[1:], *of.stride, *of.padding, row, channel)
    SOURCE.launch("gather_patches", patches.size, images, patches, *geometry)


def patch_matrix(images: Any, patches: Any, of: Any, row: int, channel: int) -> Any:
    """See the CPU's."""
    gather_patches(images, patches, of, row, channel)
    return patches.reshape(prod(patches.shape[:3]), -1)


def scatter_patches(patches: Any, images: Any, of: Any, row: int, channel: int) -> None:
    """See the CPU's. A thread for each pixel and channel adds up its windows: always the same sum, bit for bit."""
    n, height, width, channels = images.shape
    _, rows, _, down, _, depth = patches.shape
    # Pixel rows that these windows lie on.
    first = max(0, row * of.stride[0] - of.padding[0])
    stop = min(height, (row + rows - 1) * of.stride[0] - of.padding[0] + down)
    geometry = (height, width, channels, *patches.shape[1:], *of.stride, *of.padding, row, channel)
    pixels = n * max(0, stop - first) * width
    SOURCE.launch("scatter_patches", pixels * depth, patches, images, *geometry, first, stop - first)
