"""The interface between the engine and what carries out the requests of one kind of exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpidl.storage.interleaving import WorkerRecord
from mpidl.transport.interface import WorkerLink
from mpidl.transport.protocol import WORKER_STATUS
from mpidl.transport.status import Status
from mpidl.wire import ErrorFeedback


class RequestHandler:
    """Carries out the requests of one kind of exchange for one worker.

    Attributes
    ----------
    status : Status
        The worker's running totals.
    record : WorkerRecord or None
        Where batches and fetches are noted.
    actions : dict of request to callable
    feedback : sequence of ErrorFeedback
        What the wire format has left out so far, for each server.
    """

    record: WorkerRecord | None = None
    actions: dict[type, Callable[[Any], Any]]
    feedback: Sequence[ErrorFeedback] = ()

    def __init__(self) -> None:
        self.status = Status(WORKER_STATUS)

    def bind(self, link: WorkerLink) -> None:
        """Reach the other ranks by `link` from now on."""
        raise NotImplementedError

    def unbind(self) -> None:
        """Let go of the transport's memory, which is about to be freed."""

    def start(self, parameters: np.ndarray) -> None:
        """Get ready to train with the replica's `parameters`; called by all workers."""

    def took(self, portion: int, batch: int) -> None:
        """Note the batch that the next vector will come from."""
        if self.record is not None:
            self.record.took(portion, batch)

    def computed(self, loss: float) -> None:
        """Note the sum of the losses of a gradient's samples."""

    def applied(self) -> bool:
        """Return whether all that this worker pushed has been applied."""
        return True

    def fetch(self, parameters: np.ndarray) -> None:
        """Bring the present parameters, with all of this worker's own pushes, into a vector."""
        raise NotImplementedError

    def post(self) -> None:
        """Post what this worker knows of the shard that it holds, if any."""

    def end_pushes(self) -> None:
        """Tell the other ranks that nothing more comes from this worker."""
