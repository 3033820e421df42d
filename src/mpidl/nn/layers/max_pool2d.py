"""Pooling by the maximum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mpidl.nn import kernels
from mpidl.nn.layers.layer import Buffer, Shape, Workspace
from mpidl.nn.layers.pooling2d import Pooling2d, as_images


@dataclass(frozen=True)
class MaxPool2d(Pooling2d):
    """The maximum over each window; the padding never is it.

    Of equal maxima the first, row by row, has the gradient. The keys are those of `Pooling2d`.
    """

    type: ClassVar[str] = "max_pool2d"

    def buffers(self, input_shape: Shape) -> dict[str, Buffer]:
        """See `Layer`."""
        of = self.windows(input_shape)
        return {"winners": Buffer((*of.positions, of.channels), "int32")}

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        """See `Layer`."""
        of = self.windows(inputs.shape[1:])
        kernels.of(work.xp).max_pool(as_images(inputs), as_images(outputs), work.buffers["winners"], of)

    def backward(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        """See `Layer`."""
        if input_gradient is not None:
            winners = work.buffers["winners"]
            kernels.of(work.xp).chain_max_pool(winners, as_images(output_gradient), as_images(input_gradient))
