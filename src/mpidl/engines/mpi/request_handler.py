"""The interface between the engine and the handlers of requests, one for each kind of exchange."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from msgspec import Struct

from mpidl.algorithms.requests import LateBy
from mpidl.data.dataset import Split
from mpidl.engines import monotonic
from mpidl.engines.mpi.group import Lead
from mpidl.engines.progress import UnpushedBatches
from mpidl.parameters.ranges import Range
from mpidl.rma.worker import WorkerLink
from mpidl.shards.shard import Shard
from mpidl.storage.position import ReplicaPosition
from mpidl.transport.protocol import Meeting, Order, Phase, State
from mpidl.transport.status import ShardStatus, WorkerStatus


class SideChannel:
    """What a worker exchanges with servers beside its vectors; this base class exchanges nothing."""

    def split(self, split: Split) -> Split:
        """Return the training data, whose batches may be looked at ahead."""
        return split

    def bind(self, link: WorkerLink, status: WorkerStatus) -> None:
        """Reach the servers by `link` from now on; the worker's `status` counts bytes and time."""

    def push(self) -> None:
        """Send the side data of the worker's next push; its vector follows."""

    def vectors(self) -> dict[str, np.ndarray]:
        """Return arrays, by name, with what has not been pushed yet, for a checkpoint."""
        return {}

    def load(self, vectors: Mapping[str, np.ndarray]) -> None:
        """Continue with what `vectors` of another worker returned, among other arrays."""


class Contribution(Struct, frozen=True):
    """The contribution of one worker to a checkpoint: positions of replicas and states of shards, by their numbers.

    `taken` is that of `mpidl.transport.protocol.Saved`.
    """

    replicas: dict[int, ReplicaPosition]
    shards: dict[int, tuple[Range, dict[str, np.ndarray]]] = {}
    taken: int | None = None


class CheckpointSource:
    """The contribution of an exchange to checkpoints.

    `together` says whether all workers obey an order after the same push or reduction. `where` returns the replica's
    position, which changes while `changing` is entered. `cut_seen` is called with the ordinal of an order that others
    may have marked, before values that they have changed since are used.
    """

    together: bool = False
    where: Callable[[], ReplicaPosition]
    changing: AbstractContextManager[None] = nullcontext()

    def __init__(self) -> None:
        self.cut_seen: Callable[[int], None] = lambda order: None

    def bind(self, link: WorkerLink) -> None:
        """Reach the other ranks by `link` from now on."""
        self._link = link

    def order(self, told: Order, marked: int) -> Order:
        """Return the order that this worker may obey now: that of the coordinator, `told`, or an earlier one.

        The worker has marked the order `marked`.
        """
        return told

    def mark(self, order: int) -> bool:
        """Mark an order, so that later pushes of this worker are not in its checkpoint; False: call again."""
        return True

    def cut(self, order: int, number: int, position: ReplicaPosition) -> Contribution | None:
        """Return the contribution of worker `number` to a checkpoint; None if it isn't available yet."""
        return Contribution({number: position})

    def last_fetched(self) -> list[list[int]]:
        """Return the clock of each shard at the last fetch."""
        return []

    def vectors(self) -> dict[str, np.ndarray]:
        """Return a copy of the vectors that are kept beside the replica's."""
        return {}

    def load(self, position: ReplicaPosition, vectors: Mapping[str, np.ndarray]) -> None:
        """Continue from the position of another worker, whose `vectors` these are."""


class RequestHandler:
    """Carries out the requests of one kind of exchange for one worker.

    Parameters
    ----------
    checkpoint : CheckpointSource, optional

    Attributes
    ----------
    status : WorkerStatus
        The worker's running totals.
    actions : dict of request to callable
    unpushed : UnpushedBatches
    checkpoint : CheckpointSource
        What the exchange contributes to checkpoints.
    shards : sequence of Shard
        The worker's shards, where there are no servers.
    late_by : callable or None
        That of the gradient that is computed.
    lead : Lead
        Decides for the ranks of the worker's replica; set before `bind`.
    """

    actions: dict[type, Callable[[Any], Any]]
    shards: Sequence[Shard] = ()
    late_by: LateBy = None
    lead = Lead()

    def __init__(self, checkpoint: CheckpointSource | None = None) -> None:
        self.status = WorkerStatus()
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

    def late(self) -> bool:
        """Return whether nothing waits any more for the gradient that is computed, as `late_by` says."""
        return False

    def progress(self) -> None:
        """Advance what is under way; called between two batches."""

    def fetch(self, parameters: np.ndarray) -> None:
        """Copy the present parameters, with all of this worker's own pushes, into a vector."""
        raise NotImplementedError

    def aside(self) -> AbstractContextManager[None]:
        """Return a context in which the model's gradients are not this worker's; entered between two batches."""
        return nullcontext()

    def post(self) -> None:
        """Post the status of the shards that this worker holds, if any."""

    def end_pushes(self) -> None:
        """Tell the other ranks that this worker pushes nothing more."""


class OwnShards(RequestHandler):
    """Posts the figures of the worker's shards."""

    def __init__(self, shards: Sequence[Shard], checkpoint: CheckpointSource) -> None:
        super().__init__(checkpoint)
        self.shards = shards
        self._shard_statuses = [ShardStatus(shard) for shard in shards]

    def post(self) -> None:
        for number, status in enumerate(self._shard_statuses):
            self._link.reports.post_shard(status.taken(), shard=number)

    def end_pushes(self) -> None:
        for number, status in enumerate(self._shard_statuses):
            status.figures["state"] = State.TRAINED
            self._link.reports.post_shard(status.taken(), wake=True, shard=number)


class ReducedCheckpoint(CheckpointSource):
    """The shards as a reduction left them: all workers obey an order after the same one.

    `latest` is the order of the last reduction that is finished.
    """

    together = True

    def __init__(self) -> None:
        super().__init__()
        self.latest = Order(0, 0, Phase.TRAIN)

    def order(self, told: Order, marked: int) -> Order:
        return self.latest

    def reduced(self, message: np.ndarray) -> None:
        """Note that a reduction is finished, with this message of the first worker; see `Meeting`."""
        self.latest = Order(int(message[Meeting.ORDER]), int(message[Meeting.LAST]), Phase.TRAIN)


class Reducing(OwnShards):
    """Exchanges by reductions, whose results update the worker's shards.

    `evaluate` is called on all workers, with an epoch and the parameters after it. `epoch_over` is the epoch to
    evaluate with the next reduction; 0 for none.
    """

    def __init__(
        self, shards: Sequence[Shard], orders: CheckpointSource, evaluate: Callable[[int, np.ndarray], None]
    ) -> None:
        super().__init__(shards, orders)
        self._evaluate = evaluate
        self.epoch_over = 0

    def _count(self, gave: int, nbytes: int) -> None:
        """Count a reduction with a result of `nbytes` bytes, to which this worker gave `gave` vectors, 0 or 1."""
        figures = self.status.figures
        figures["pushes"] += gave
        figures["bytes_pushed"] += gave * nbytes
        figures["fetches"] += 1
        figures["bytes_fetched"] += nbytes
        figures["last_push"] = monotonic.now()
