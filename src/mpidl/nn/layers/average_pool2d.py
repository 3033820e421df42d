"""Average pooling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mpidl.nn.layers.pooling2d import Pooling2d, as_images
from mpidl.nn.layers.workspace import Workspace


@dataclass(frozen=True)
class AveragePool2d(Pooling2d):
    """The mean over each window, zeros of the padding included (PyTorch's default).

    For the keys see `Pooling2d`.
    """

    type: ClassVar[str] = "average_pool2d"

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        windows = self.windows(inputs.shape[1:])
        work.kernels.average_pool(as_images(inputs), as_images(outputs), windows)

    def backward_inputs(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        if input_gradient is None:
            return
        windows = self.windows(inputs.shape[1:])
        work.kernels.backprop_average_pool(as_images(output_gradient), as_images(input_gradient), windows)
