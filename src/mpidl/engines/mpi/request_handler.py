"""The interface between the engine and what carries out the requests of one kind of exchange."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mpidl.engines.mpi.lead import Lead
from mpidl.engines.mpi.unpushed import UnpushedBatches
from mpidl.parameters.ranges import Range
from mpidl.rma.worker import WorkerLink
from mpidl.shards.shard import Shard
from mpidl.storage.position import ReplicaPosition
from mpidl.transport.protocol import WORKER_STATUS, Order
from mpidl.transport.status import Status
from mpidl.wire import Differences, ErrorFeedback


@dataclass(frozen=True)
class Part:
    """What one worker contributes to a checkpoint.

    Attributes
    ----------
    replicas : dict of int to ReplicaPosition
        Where replicas are, by their numbers.
    shards : dict of int to (Range, dict)
        Ranges and states of the shards that this worker writes, by their numbers.
    taken : int or None
        See `mpidl.transport.protocol.Saved`.
    """

    replicas: dict[int, ReplicaPosition]
    shards: dict[int, tuple[Range, dict[str, np.ndarray]]] = field(default_factory=dict)
    taken: int | None = None


class RequestHandler:
    """Carries out the requests of one kind of exchange for one worker.

    Attributes
    ----------
    status : Status
        The worker's running totals.
    actions : dict of request to callable
    feedback : sequence of ErrorFeedback
        What the wire format has left out so far, for each server.
    copies : sequence of Differences
        What this worker has of each shard, where fetches are encoded.
    unpushed : UnpushedBatches
    together : bool
        Whether all workers obey an order after the same push or reduction.
    where : callable
        Returns where the replica is.
    cut_seen : callable
        Called with the ordinal of an order that others may have marked, before values that they have changed since
        are used.
    changing : context manager
        The replica's position changes while it is entered.
    shards : sequence of Shard
        What this worker holds, where there are no servers.
    lead : Lead
        Decides for the ranks of the worker's replica; set before `bind`.
    """

    actions: dict[type, Callable[[Any], Any]]
    feedback: Sequence[ErrorFeedback] = ()
    copies: Sequence[Differences] = ()
    together = False
    where: Callable[[], ReplicaPosition]
    changing: AbstractContextManager[None] = nullcontext()
    shards: Sequence[Shard] = ()
    lead = Lead()

    def __init__(self) -> None:
        self.status = Status(WORKER_STATUS)
        self.unpushed = UnpushedBatches()
        self.cut_seen: Callable[[int], None] = lambda order: None

    def bind(self, link: WorkerLink) -> None:
        """Reach the other ranks by `link` from now on."""
        self._link = link

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
        """Return whether all that this worker pushed has been applied."""
        return True

    def progress(self) -> None:
        """Let what is under way go on; called between two batches."""

    # Checkpoints.

    def order(self, told: Order, marked: int) -> Order:
        """Return the order that this worker may obey now: what the coordinator has told it, or an earlier one.

        It has marked the order `marked`.
        """
        return told

    def mark(self, order: int) -> bool:
        """Mark an order, so that what this worker pushes from now on is not in its checkpoint; False: call again."""
        return True

    def cut(self, order: int, number: int, position: ReplicaPosition) -> Part | None:
        """Return what worker `number` contributes to a checkpoint; None if that can't be had at this moment."""
        return Part({number: position})

    def last_fetched(self) -> list[list[int]]:
        """Return what was read of each shard's clock at the last fetch."""
        return []

    def vectors(self) -> dict[str, np.ndarray]:
        """Return a copy of the vectors that are kept beside the replica's."""
        return {}

    def load(self, position: ReplicaPosition, vectors: Mapping[str, np.ndarray]) -> None:
        """Go on where another worker was, whose `vectors` these are."""
        self.unpushed.load(position)

    def fetch(self, parameters: np.ndarray) -> None:
        """Bring the present parameters, with all of this worker's own pushes, into a vector."""
        raise NotImplementedError

    def post(self) -> None:
        """Post what this worker knows of the shard that it holds, if any."""

    def end_pushes(self) -> None:
        """Tell the other ranks that nothing more comes from this worker."""
