"""Pooling; see `mpidl.nn.kernels.cpu.pooling`."""

from __future__ import annotations

from typing import Any

from mpidl.nn.kernels.cuda.module import CudaModule

MODULE = CudaModule("pooling", "sliding_windows")


def max_pool(images: Any, outputs: Any, winners: Any, windows: Any) -> None:
    """See the CPU's."""
    MODULE.launch("max_pool", outputs.size, images, outputs, winners, *_geometry(images, windows))


def backprop_max_pool(winners: Any, output_gradient: Any, input_gradient: Any) -> None:
    """See the CPU's."""
    n, channels = len(winners), winners.shape[-1]
    pixels, positions = input_gradient.size // (n * channels), winners.size // (n * channels)
    geometry = (pixels, channels, positions)
    MODULE.launch("backprop_max_pool", input_gradient.size, output_gradient, input_gradient, winners, *geometry)


def average_pool(images: Any, outputs: Any, windows: Any) -> None:
    """See the CPU's."""
    MODULE.launch("pool", outputs.size, images, outputs, 0, *_geometry(images, windows))


def backprop_average_pool(output_gradient: Any, input_gradient: Any, windows: Any) -> None:
    """See the CPU's."""
    unused = output_gradient
    arrays = (unused, unused, output_gradient, input_gradient)
    MODULE.launch("backprop_pool", input_gradient.size, *arrays, 0, *_geometry(input_gradient, windows))


def l2_pool(images: Any, outputs: Any, windows: Any) -> None:
    """See the CPU's."""
    MODULE.launch("pool", outputs.size, images, outputs, 1, *_geometry(images, windows))


def backprop_l2_pool(images: Any, outputs: Any, output_gradient: Any, input_gradient: Any, windows: Any) -> None:
    """See the CPU's."""
    arrays = (images, outputs, output_gradient, input_gradient)
    MODULE.launch("backprop_pool", input_gradient.size, *arrays, 1, *_geometry(images, windows))


def _geometry(images: Any, windows: Any) -> tuple[int, ...]:
    return (*images.shape[1:], *windows.positions, *windows.size, *windows.stride, *windows.padding)
