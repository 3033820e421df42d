"""A worker's link: to the coordinator, to the servers and to the other workers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import numpy as np

from mpidl.parameters.ranges import Range
from mpidl.rma.answers import AnswerReader
from mpidl.rma.counters import Counter
from mpidl.rma.differences import DifferenceFetch
from mpidl.rma.evaluation import WorkerEvaluation
from mpidl.rma.fetches import Fetches
from mpidl.rma.orders import Orders
from mpidl.rma.outbox import Outbox
from mpidl.rma.outboxes import Outboxes
from mpidl.rma.reports import WorkerReports
from mpidl.rma.shared_state import SharedState
from mpidl.rma.tickets import Clocks, Tickets
from mpidl.transport.protocol import Control
from mpidl.wire import Differences, ErrorFeedback


class WorkerLink:
    """A worker's link.

    Parameters
    ----------
    shared : SharedState
    number : int
        The worker's number.
    feedback : sequence of ErrorFeedback
        For each of its shards, the error feedback of pushes, if these are encoded.
    copies : sequence of Differences
        For each of its shards, its copy, if fetches are encoded.

    Attributes
    ----------
    tickets : Tickets
    clocks : Clocks
    orders : Orders
    reports : WorkerReports
    pushes : Outboxes
    fetches : Fetches
    asked : list of AnswerReader
        Its ends of answers to what it asks for beside pushes, for each shard; empty in a job without that.
    evaluation : WorkerEvaluation
        Its part in evaluations that the coordinator drives.
    shared : SharedMemory
        Memory of the parameters, where workers share it.
    shards : list of Range
        The shards that make up this worker's slice of the vector, counted from its beginning.
    direct : bool
        See `mpidl.transport.routes.Route`.
    backoff : callable
        `SharedState.backoff`.
    peers : MPI.Intracomm or None
        In a job without servers, the workers that have the same slice.
    crowded : bool
        Whether the ranks of this node outnumber the cores that they may run on.
    """

    def __init__(
        self,
        shared: SharedState,
        number: int,
        feedback: Sequence[ErrorFeedback] = (),
        copies: Sequence[Differences] = (),
    ) -> None:
        self._transport, self.crowded, self.peers, self.backoff = shared, shared.crowded, shared.peers, shared.backoff
        window, capacity, doorbells = shared.window, shared.capacity, shared.doorbells
        replica, partition = divmod(number, shared.partitions)
        self._partition = partition
        numbers, route = capacity.of_partition(partition), shared.routes.of(number)
        servers = shared.routes.servers(partition)
        own = [each for each in capacity.held_by(replica) if each in numbers]
        self.direct = route.direct
        origin = capacity.slices[partition].start if capacity.slices else 0
        self.shards: list[Range] = [capacity.shards[each].shift(-origin) for each in numbers]
        self.tickets, self.clocks = Tickets(shared, number), Clocks(shared, replica)
        self.orders = Orders(shared, route.rank)
        self.reports = WorkerReports(shared, number, own)
        self.evaluation, self.shared = WorkerEvaluation(shared), SharedMemory(shared)
        parts = [slice(*shard) for shard in self.shards[: len(servers)]]
        outboxes = [
            Outbox(window, rank, route.ring, geometry, shared.encoder(rank, encoder), shard, not route.direct)
            for (rank, shard), geometry, encoder in zip(
                route.holders, route.geometries, feedback or repeat(None), strict=False
            )
        ]
        self.pushes = Outboxes(outboxes, parts, doorbells)
        differences = {
            place: DifferenceFetch(window, rank, route.ring, copy, doorbells, shard)
            for place, ((rank, shard), copy) in enumerate(zip(servers, copies, strict=False))
            if shared.encodes(rank)
        }
        self.asked = [
            AnswerReader(window, rank, route.ring, shard, capacity.side_data)
            for rank, shard in route.holders
            if capacity.side_data
        ]
        self.fetches = Fetches(window, route, servers, parts, self.pushes, differences, capacity.evaluated)

    @property
    def played(self) -> list[int]:
        """The replicas whose ranks this worker's process plays."""
        shared, place = self._transport, self._partition
        ranks = [replica[place] for replica in shared.roles.replicas]
        own = shared.processes[shared.rank]
        return [number for number, rank in enumerate(ranks) if shared.processes[rank] == own]


class SharedMemory:
    """A worker's access to the parameters and the rule's state, `vectors`, that all workers of its node map.

    `rows`, int64, has a row for the gate and one for each worker; see `protocol.Row`.
    """

    def __init__(self, shared: SharedState) -> None:
        self._window = shared.window
        self.vectors, self.rows = (each.vectors for each in shared.shared) if shared.shared else ([], np.array(0))
        self._copied = Counter(shared.window, shared.roles.coordinator, "control", Control.COPIED)
        self._order = 0

    def sync(self) -> None:
        """Make what this worker has written visible before it reads what others write."""
        self._window.sync()

    def take_order(self, order: int) -> bool:
        """Return whether this worker is the one that copies the memory for an order."""
        if self._order < order:
            if self._copied.raise_to(order) >= order:
                return False
            self._order = order
        return self._order == order
