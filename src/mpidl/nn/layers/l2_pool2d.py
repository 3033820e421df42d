"""L2 pooling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mpidl.nn.layers.pooling2d import Pooling2d, as_images
from mpidl.nn.layers.workspace import Workspace


@dataclass(frozen=True)
class L2Pool2d(Pooling2d):
    """The square root of the sum of squares over each window (Le et al. 2012, section 3.2; DistBelief's image model).

    The root has no derivative at zero: a window of zeros passes no gradient on. For the keys see `Pooling2d`.
    """

    type: ClassVar[str] = "l2_pool2d"

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        windows = self.windows(inputs.shape[1:])
        work.kernels.l2_pool(as_images(inputs), as_images(outputs), windows)

    def backward_inputs(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        if input_gradient is None:
            return
        windows = self.windows(inputs.shape[1:])
        arrays = (inputs, outputs, output_gradient, input_gradient)
        work.kernels.backprop_l2_pool(*map(as_images, arrays), windows)
