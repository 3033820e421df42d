"""The interface between the engine and its way of exchanging parameters with the other ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpidl.rma.status import Row
from mpidl.storage.interleaving import WorkerRecord


class Exchange:
    """Carries out the requests of one kind of exchange for one worker.

    Attributes
    ----------
    row : Row
        The worker's row on the board.
    record : WorkerRecord or None
        Where batches and fetches are noted.
    actions : dict of request to callable
    """

    row: Row
    record: WorkerRecord | None = None
    actions: dict[type, Callable[[Any], Any]]

    def start(self, parameters: np.ndarray) -> None:
        """Make ready to train, with the replica's `parameters`; called by all workers."""

    def took(self, portion: int, batch: int) -> None:
        """Note the batch that the next vector will come from."""
        if self.record is not None:
            self.record.took(portion, batch)

    def computed(self, loss: float) -> None:
        """Note the sum of the losses of a gradient's samples."""

    def applied(self) -> bool:
        """Tell whether all that this worker pushed has been applied."""
        return True

    def fetch(self, parameters: np.ndarray) -> None:
        """Bring the present parameters, with all of this worker's own pushes, into a vector."""
        raise NotImplementedError

    def post(self) -> None:
        """Post to the board what this worker knows of its shard, if it holds one."""

    def end_pushes(self) -> None:
        """Tell all others that nothing more comes from this worker."""

    def release_memory(self) -> None:
        """Let go of shared memory, which is about to be freed."""
