"""The interface between a worker's part in checkpoints and its exchange of parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np

from mpidl.parameters.ranges import Range
from mpidl.rma.worker import WorkerLink
from mpidl.storage.position import ReplicaPosition
from mpidl.transport.protocol import Order


@dataclass(frozen=True)
class Contribution:
    """The contribution of one worker to a checkpoint: positions of replicas and states of shards, by their numbers.

    `taken` is that of `mpidl.transport.protocol.SavedFiles`.
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
