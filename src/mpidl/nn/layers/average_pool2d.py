"""Pooling by the mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mpidl.nn import kernels
from mpidl.nn.layers.layer import Workspace
from mpidl.nn.layers.pooling2d import Pooling2d, as_images


@dataclass(frozen=True)
class AveragePool2d(Pooling2d):
    """The mean over each window, in which the zeros of the padding count (as PyTorch does unless told otherwise).

    The keys are those of `Pooling2d`.
    """

    type: ClassVar[str] = "average_pool2d"

    def forward(self, work: Workspace, inputs: Any, outputs: Any) -> None:
        """See `Layer`."""
        of = self.windows(inputs.shape[1:])
        kernels.of(work.xp).average_pool(as_images(inputs), as_images(outputs), of)

    def backward(
        self, work: Workspace, inputs: Any, outputs: Any, output_gradient: Any, input_gradient: Any | None
    ) -> None:
        """See `Layer`."""
        if input_gradient is None:
            return
        of = self.windows(inputs.shape[1:])
        kernels.of(work.xp).chain_average_pool(as_images(output_gradient), as_images(input_gradient), of)
