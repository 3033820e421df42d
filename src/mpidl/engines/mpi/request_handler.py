"""The interface between the engine and the handlers of requests, one for each kind of exchange."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mpidl.data.dataset import Split
from mpidl.engines.mpi.group import Lead
from mpidl.parameters.ranges import Range
from mpidl.rma.worker import WorkerLink
from mpidl.shards.shard import Shard
from mpidl.storage.position import ReplicaPosition
from mpidl.transport.protocol import Order, State
from mpidl.transport.status import ShardStatus, WorkerStatus


class SideChannel:
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


@dataclass(frozen=True)
class Contribution:
    """The contribution of one worker to a checkpoint: positions of replicas and states of shards, by their numbers.

    `taken` is that of `mpidl.transport.protocol.Saved`.
    """

    replicas: dict[int, ReplicaPosition]
    shards: dict[int, tuple[Range, dict[str, np.ndarray]]] = field(default_factory=dict)
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


class UnpushedBatches:
    """Follows a worker from batch to batch.

    `portion` is that of the last batch, -1 before the first. `parts` are the batches computed since the last push: a
    portion, its first such batch, and the batch after the last. `number` returns the number of a portion's batch.
    """

    def __init__(self) -> None:
        self.number: Callable[[int, int], int] = lambda portion, batch: portion
        self.parts: list[list[int]] = []
        self.portion, self._batch = -1, -1

    def load(self, position: ReplicaPosition) -> None:
        """Go on where a replica was."""
        self.parts = [list(part) for part in position.unpushed]
        self.portion = position.portion

    def took(self, portion: int, batch: int) -> None:
        """Note the batch that the next gradient will come from."""
        self.portion, self._batch = portion, batch

    def computed(self) -> None:
        """Note that the gradient of the last batch has been computed."""
        if self.parts and self.parts[-1][0] == self.portion:
            self.parts[-1][2] = self._batch + 1
        else:
            self.parts.append([self.portion, self._batch, self._batch + 1])

    @property
    def batch(self) -> int:
        """The number of the last batch in the run, -1 before the first."""
        return self.number(self.portion, self._batch) if self._batch >= 0 else -1

    @property
    def batches(self) -> tuple[int, int]:
        """The numbers of the first and the last batch of a push of all batches computed so far."""
        if not self.parts:
            return self.batch, self.batch
        (first_portion, first, _), (last_portion, _, last) = self.parts[0], self.parts[-1]
        return self.number(first_portion, first), self.number(last_portion, last - 1)

    def pushed(self, rest: int = 0) -> None:
        """Note that all batches but the last `rest` have been pushed."""
        if not rest:
            self.parts.clear()
            return
        pushed = sum(last - first for _, first, last in self.parts) - rest
        while pushed > 0:
            _, first, last = self.parts[0]
            self.parts[0][1] = min(last, first + pushed)
            pushed -= last - first
            if pushed >= 0:
                del self.parts[0]


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
    lead : Lead
        Decides for the ranks of the worker's replica; set before `bind`.
    """

    actions: dict[type, Callable[[Any], Any]]
    shards: Sequence[Shard] = ()
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
        """Return whether nothing waits any more for a gradient computed on what was fetched last."""
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


class OwnShard(RequestHandler):
    """Posts the figures of the worker's shard."""

    def __init__(self, shard: Shard, checkpoint: CheckpointSource) -> None:
        super().__init__(checkpoint)
        self.shard, self.shards = shard, (shard,)
        self._shard_status = ShardStatus(shard)

    def post(self) -> None:
        self._link.reports.post_shard(self._shard_status.taken())

    def end_pushes(self) -> None:
        self._shard_status.figures["state"] = State.TRAINED
        self._link.reports.post_shard(self._shard_status.taken(), wake=True)
