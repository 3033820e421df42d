"""The interface between the engine and what carries out the requests of one kind of exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpidl.engines.mpi.checkpoint_source import CheckpointSource
from mpidl.engines.mpi.lead import Lead
from mpidl.engines.mpi.unpushed import UnpushedBatches
from mpidl.rma.worker import WorkerLink
from mpidl.shards.shard import Shard
from mpidl.transport.protocol import WORKER_STATUS
from mpidl.transport.status import Status


class RequestHandler:
    """Carries out the requests of one kind of exchange for one worker.

    Parameters
    ----------
    checkpoint : CheckpointSource, optional

    Attributes
    ----------
    status : Status
        The worker's running totals.
    actions : dict of request to callable
    unpushed : UnpushedBatches
    checkpoint : CheckpointSource
        What the exchange contributes to checkpoints.
    shards : sequence of Shard
        The worker's shards, where there are no servers.
    lead : Lead
        Decides for the ranks of the worker's replica; set before `bind`.
    """

    actions: dict[type, Callable[[Any], Any]]
    shards: Sequence[Shard] = ()
    lead = Lead()

    def __init__(self, checkpoint: CheckpointSource | None = None) -> None:
        self.status = Status(WORKER_STATUS)
        self.unpushed = UnpushedBatches()
        self.checkpoint = checkpoint or CheckpointSource()

    def bind(self, link: WorkerLink) -> None:
        """Reach the other ranks by `link` from now on."""
        self._link = link
        self.checkpoint.bind(link)

    def unbind(self) -> None:
        """Let go of the transport's memory, which is about to be freed."""

    def start(self, parameters: np.ndarray) -> None:
        """Get ready to train with the replica's `parameters`; called by all workers."""

    def took(self, portion: int, batch: int) -> None:
        """Note the batch that the next vector will come from."""
        self.unpushed.took(portion, batch)

    def computed(self, loss: float, weight: float) -> None:
        """Note that a gradient has been computed, its batch's weight, and the mean loss times this weight."""
        self.unpushed.computed()

    def applied(self) -> bool:
        """Return whether all pushes of this worker have been applied."""
        return True

    def progress(self) -> None:
        """Advance what is under way; called between two batches."""

    def fetch(self, parameters: np.ndarray) -> None:
        """Copy the present parameters, with all of this worker's own pushes, into a vector."""
        raise NotImplementedError

    def post(self) -> None:
        """Post the status of the shards that this worker holds, if any."""

    def end_pushes(self) -> None:
        """Tell the other ranks that this worker pushes nothing more."""
