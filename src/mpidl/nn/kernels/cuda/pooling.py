"""Windows of images reduced to one value a channel; see `mpidl.nn.kernels.cpu.pooling`."""

from __future__ import annotations

from typing import Any

from mpidl.nn.kernels.cuda.source import Source

SOURCE = Source("pooling", "windows")


def max_pool(images: Any, outputs: Any, winners: Any, of: Any) -> None:
    """See the CPU's."""
    SOURCE.launch("max_pool", outputs.size, images, outputs, winners, *_geometry(images, of))


def chain_max_pool(winners: Any, output_gradient: Any, input_gradient: Any) -> None:
    """See the CPU's."""
    n, channels = len(winners), winners.shape[-1]
    pixels, positions = input_gradient.size // (n * channels), winners.size // (n * channels)
    geometry = (pixels, channels, positions)
    SOURCE.launch("chain_max_pool", input_gradient.size, output_gradient, input_gradient, winners, *geometry)


def average_pool(images: Any, outputs: Any, of: Any) -> None:
    """See the CPU's."""
    SOURCE.launch("pool", outputs.size, images, outputs, 0, *_geometry(images, of))


def chain_average_pool(output_gradient: Any, input_gradient: Any, of: Any) -> None:
    """See the CPU's."""
    unused = output_gradient
    arrays = (unused, unused, output_gradient, input_gradient)
    SOURCE.launch("chain_pool", input_gradient.size, *arrays, 0, *_geometry(input_gradient, of))


def l2_pool(images: Any, outputs: Any, of: Any) -> None:
    """See the CPU's."""
    SOURCE.launch("pool", outputs.size, images, outputs, 1, *_geometry(images, of))


def chain_l2_pool(images: Any, outputs: Any, output_gradient: Any, input_gradient: Any, of: Any) -> None:
    """See the CPU's."""
    arrays = (images, outputs, output_gradient, input_gradient)
    SOURCE.launch("chain_pool", input_gradient.size, *arrays, 1, *_geometry(images, of))


def _geometry(images: Any, of: Any) -> tuple[int, ...]:
    return (*images.shape[1:], *of.positions, *of.size, *of.stride, *of.padding)
