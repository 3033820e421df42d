"""Max pooling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mpidl.nn.layers.pooling2d import Pooling2d, as_images
from mpidl.nn.layers.workspace import Buffer, Shape, Workspace


@dataclass(frozen=True)
class MaxPool2d(Pooling2d):
    """The maximum over each window, padding excluded.

    If several pixels are equal, the first one in row-major order gets the gradient. For the keys see `Pooling2d`.
    """

    type: ClassVar[str] = "max_pool2d"

    def buffers(self, input_shape: Shape) -> dict[str, Buffer]:
        windows = self.windows(input_shape)
        return {"winners": Buffer((*windows.positions, windows.channels), "int32")}

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        windows = self.windows(inputs.shape[1:])
        work.kernels.max_pool(as_images(inputs), as_images(outputs), work.buffers["winners"], windows)

    def backward_inputs(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        if input_gradient is not None:
            winners = work.buffers["winners"]
            work.kernels.backprop_max_pool(winners, as_images(output_gradient), as_images(input_gradient))
