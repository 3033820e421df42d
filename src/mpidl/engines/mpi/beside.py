"""What a worker exchanges with servers beside its vectors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mpidl.data.dataset import Split
from mpidl.rma.worker import WorkerLink
from mpidl.transport.status import WorkerStatus


class Nothing:
    """The interface, and the exchange of nothing."""

    def split(self, split: Split) -> Split:
        """Return the training data, whose batches may be looked at ahead."""
        return split

    def bind(self, link: WorkerLink, status: WorkerStatus) -> None:
        """Reach the servers by `link` from now on; the worker's `status` counts bytes and time."""

    def push(self) -> None:
        """Send what the worker's next push changes; its vector follows."""

    def vectors(self) -> dict[str, np.ndarray]:
        """Return arrays, by name, with what has not been pushed yet, for a checkpoint."""
        return {}

    def load(self, vectors: Mapping[str, np.ndarray]) -> None:
        """Continue with what `vectors` of another worker returned, among other arrays."""
