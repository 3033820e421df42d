"""Patches: sliding windows of images as rows of a matrix; see `mpidl.nn.kernels.cpu.patches`."""

from __future__ import annotations

from math import prod
from typing import Any

from mpidl.nn.kernels.cuda.module import CudaModule

MODULE = CudaModule("patches", "sliding_windows")


def gather_patches(images: Any, patches: Any, windows: Any, row: int, channel: int) -> None:
    """See the CPU's."""
    _, height, width, channels = images.shape
    geometry = (height, width, channels, *patches.shape[1:], *windows.stride, *windows.padding, row, channel)
    MODULE.launch("gather_patches", patches.size, images, patches, *geometry)


def patch_matrix(images: Any, patches: Any, windows: Any, row: int, channel: int) -> Any:
    """See the CPU's."""
    gather_patches(images, patches, windows, row, channel)
    return patches.reshape(prod(patches.shape[:3]), -1)


def scatter_patches(patches: Any, images: Any, windows: Any, row: int, channel: int) -> None:
    """See the CPU's. One thread per pixel and channel sums over its windows, in the same order in every run."""
    n, height, width, channels = images.shape
    _, rows, _, down, _, depth = patches.shape
    # The rows of pixels that these windows cover.
    first = max(0, row * windows.stride[0] - windows.padding[0])
    stop = min(height, (row + rows - 1) * windows.stride[0] - windows.padding[0] + down)
    geometry = (height, width, channels, *patches.shape[1:], *windows.stride, *windows.padding, row, channel)
    pixels = n * max(0, stop - first) * width
    MODULE.launch("scatter_patches", pixels * depth, patches, images, *geometry, first, stop - first)
