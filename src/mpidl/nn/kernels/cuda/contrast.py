"""Per-pixel parts of local contrast normalisation; see `mpidl.nn.kernels.cpu.contrast`."""

from __future__ import annotations

from typing import Any

from mpidl.nn.kernels.cuda.module import CudaModule

MODULE = CudaModule("contrast")


def channel_moments(images: Any, mean: Any, variance: Any) -> None:
    """See the CPU's."""
    MODULE.launch("channel_moments", mean.size, images, mean, variance, images.shape[1])


def normalise_contrast(images: Any, local_mean: Any, deviation: Any, outputs: Any) -> None:
    """See the CPU's."""
    MODULE.launch("normalise_contrast", images.size, images, local_mean, deviation, outputs, images.shape[1])


def contrast_slopes(
    outputs: Any, output_gradient: Any, deviation: Any, threshold: float, slopes: Any, sums: Any
) -> None:
    """See the CPU's."""
    arguments = (outputs, output_gradient, deviation, float(threshold), slopes, sums, outputs.shape[1])
    MODULE.launch("contrast_slopes", deviation.size, *arguments)


def backprop_contrast(
    outputs: Any, output_gradient: Any, deviation: Any, slopes: Any, shifts: Any, input_gradient: Any
) -> None:
    """See the CPU's."""
    arguments = (outputs, output_gradient, deviation, slopes, shifts, input_gradient, outputs.shape[1])
    MODULE.launch("backprop_contrast", outputs.size, *arguments)
