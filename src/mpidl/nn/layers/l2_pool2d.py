"""Pooling by the norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mpidl.nn import kernels
from mpidl.nn.layers.layer import Workspace
from mpidl.nn.layers.pooling2d import Pooling2d, as_images


@dataclass(frozen=True)
class L2Pool2d(Pooling2d):
    """The square root of the sum of squares over each window (Le et al. 2012, section 3.2; DistBelief's image model).

    A window of zeros, where the root has no slope, has no gradient. The keys are those of `Pooling2d`.
    """

    type: ClassVar[str] = "l2_pool2d"

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        """See `Layer`."""
        of = self.windows(inputs.shape[1:])
        kernels.of(work.xp).l2_pool(as_images(inputs), as_images(outputs), of)

    def backward(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        """See `Layer`."""
        if input_gradient is None:
            return
        of = self.windows(inputs.shape[1:])
        arrays = (inputs, outputs, output_gradient, input_gradient)
        kernels.of(work.xp).chain_l2_pool(*map(as_images, arrays), of)
