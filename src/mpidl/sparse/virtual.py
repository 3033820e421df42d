"""Rows of tables in the virtual cluster, and in a run in one process: bytes and times by rows."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import simpy

from mpidl.data.batch import Minibatch
from mpidl.data.dataset import Split
from mpidl.engines.virtual.cluster import VirtualCluster, VirtualReplica
from mpidl.engines.virtual.handler import VirtualSideChannel
from mpidl.engines.virtual.server import Load, Process
from mpidl.engines.virtual.traffic import Traffic
from mpidl.sparse.messages import RowEncodings, TableRows, answer_bytes, message_bytes
from mpidl.sparse.rows import ReplicaRows, RequestedLookup
from mpidl.sparse.server_tables import ServerTables
from mpidl.tables.lookups import Lookup, TableSpec, WithTables
from mpidl.tables.sources import TablesInMemory

#: Seconds of a server's work per byte of rows that it reads and updates: 90 and 150 ns for 16 float32.
READING, UPDATING = 90e-9 / 64, 150e-9 / 64


class VirtualRows(ReplicaRows):
    """The rows of a virtual replica (`mpidl.tables.lookups.RowSource`); `late` are lookups that were not brought."""

    def __init__(self, tables: Sequence[TableSpec], servers: Sequence[ServerTables]) -> None:
        super().__init__(tables, len(servers), servers[0].encodings)
        self._servers = servers
        self.late: list[RequestedLookup] = []

    def look_up(self, table: int, ids: np.ndarray) -> Lookup:
        if (requested := self.requested_ahead(table, ids)) is not None:
            return requested.lookup
        requested = self.request(table, ids)
        for server, tables in enumerate(self._servers):
            _read(tables, requested.part(server))
        self.late.append(requested)
        return requested.lookup


class Moved(NamedTuple):
    """Bytes of a server's rows for a batch: of the request, the answer and the push, and of the values themselves."""

    asked: float
    answered: float
    pushed: float
    values: float


class RowTraffic(VirtualSideChannel):
    """Requests for rows and their answers, which take their time."""

    pushes = True

    def begin(self, cluster: VirtualCluster, traffic: Traffic) -> None:
        self._cluster, self._traffic = cluster, traffic
        # What brings the rows of batches, by the numbers of these.
        self._coming: defaultdict[VirtualReplica, dict[int, simpy.Event]] = defaultdict(dict)

    def bring(self, replica: VirtualReplica, batch: Minibatch, coming: Sequence[Minibatch]) -> Process:
        own = self._coming[replica]
        self._ask(replica, batch)
        found = yield own.pop(batch.number)
        for each in coming:
            self._ask(replica, each)
        return found

    def _ask(self, replica: VirtualReplica, batch: Minibatch) -> None:
        own = self._coming[replica]
        if batch.number not in own:
            own[batch.number] = self._cluster.environment.process(self._bring(replica, batch))

    def _bring(self, replica: VirtualReplica, batch: Minibatch) -> Process:
        """Bring the rows of a batch."""
        raise NotImplementedError

    def exchange(
        self, replica: VirtualReplica, server: int, moved: Moved, read: Callable[[], None] = lambda: None
    ) -> Process:
        """Carry a request to a server, which calls `read` when it answers, and the answer back."""
        machines = self._cluster.machines
        assert machines is not None
        yield self._cluster.environment.process(self._serve(replica, server, moved, read))
        yield from machines.fetch(replica.number, server, moved.answered)

    def _serve(self, replica: VirtualReplica, server: int, moved: Moved, read: Callable[[], None]) -> Process:
        machines = self._cluster.machines
        assert machines is not None
        yield from self._traffic.occupy(
            replica, server, moved.asked, partial(machines.work, READING * moved.values, urgent=True)
        )
        read()
        self._cluster.servers[server].done()
        self.count(moved)

    def count(self, moved: Moved) -> None:
        """Count the bytes of a request and its answer."""
        self._cluster.totals.bytes_fetched += round(moved.asked + moved.answered)


class PredictedRows(RowTraffic):
    """The traffic of rows alone: the same for each batch, given for each server, whichever ids batches share."""

    def __init__(self, servers: Sequence[Moved], ahead: int) -> None:
        self._servers, self.ahead = servers, ahead

    def begin(self, cluster: VirtualCluster, traffic: Traffic) -> None:
        super().begin(cluster, traffic)
        self._unpushed: Counter[VirtualReplica] = Counter()

    def _bring(self, replica: VirtualReplica, batch: Minibatch) -> Process:
        environment = self._cluster.environment
        answers = [environment.process(self.exchange(replica, *each)) for each in enumerate(self._servers)]
        yield environment.all_of(answers)

    def computed(self, replica: VirtualReplica) -> Process:
        yield from ()
        self._unpushed[replica] += 1

    def push(self, replica: VirtualReplica) -> Sequence[Load]:
        batches = self._unpushed.pop(replica, 0)
        return [Load(None, batches * each.pushed, batches * UPDATING * each.values) for each in self._servers]


class VirtualTables(RowTraffic):
    """Rows of a model's tables, between virtual servers and replicas.

    Parameters
    ----------
    model : WithTables
    split : Split
        The training data.
    servers : sequence of ServerTables
    ahead : int
        Number of batches whose rows a replica asks for before the end of the present one.
    """

    def __init__(self, model: WithTables, split: Split, servers: Sequence[ServerTables], ahead: int = 0) -> None:
        # A look at a batch ahead must not overwrite the one that is computed.
        self._model, self._split, self._servers, self.ahead = model, split.copy(), servers, ahead
        self._encodings = servers[0].encodings

    def begin(self, cluster: VirtualCluster, traffic: Traffic) -> None:
        super().begin(cluster, traffic)
        rows = partial(VirtualRows, self._model.tables, self._servers)
        self._rows: defaultdict[VirtualReplica, VirtualRows] = defaultdict(rows)

    def show(self) -> None:
        names = range(len(self._model.tables))
        self._model.rows = TablesInMemory([[each.tables[number] for each in self._servers] for number in names])

    def bring(self, replica: VirtualReplica, batch: Minibatch, coming: Sequence[Minibatch]) -> Process:
        if self._cluster.machines is not None:  # Otherwise the computation reads them.
            self._rows[replica].present = yield from super().bring(replica, batch, coming)

    def _bring(self, replica: VirtualReplica, batch: Minibatch) -> Process:
        """Bring the rows of a batch, and return the lookups."""
        wanted = self._model.wanted(self._split.take(batch)) or ()
        requested = deque(self._rows[replica].request(*each) for each in wanted)
        yield from self._carry(replica, requested)
        return requested

    def _carry(self, replica: VirtualReplica, requested: Sequence[RequestedLookup]) -> Process:
        """Let all servers answer lookups."""
        environment = self._cluster.environment
        yield environment.all_of(
            [environment.process(self._answer(replica, *each)) for each in enumerate(self._parts(requested)) if each[1]]
        )

    def _parts(self, requested: Sequence[RequestedLookup]) -> list[list[TableRows]]:
        """Return the parts of lookups that each server has."""
        found = ([each.part(server) for each in requested] for server in range(len(self._servers)))
        return [[part for part in parts if part.ids.size] for parts in found]

    def _answer(self, replica: VirtualReplica, server: int, parts: Sequence[TableRows]) -> Process:
        """Carry the ids of rows to a server, and the rows back."""

        def read() -> None:
            for part in parts:
                _read(self._servers[server], part)

        return self.exchange(replica, server, moved_by(parts, self._encodings), read)

    def computing(self, replica: VirtualReplica) -> None:
        self._model.rows = self._rows[replica]

    def computed(self, replica: VirtualReplica) -> Process:
        rows = self._rows[replica]
        late, rows.late = rows.late, []
        rows.present.clear()
        if self._cluster.machines is not None and late:
            yield from self._carry(replica, late)
            return
        for parts in self._parts(late):
            self.count(moved_by(parts, self._encodings))

    def push(self, replica: VirtualReplica) -> Sequence[Load]:
        carried = self._encodings.pushed.carried
        own = [
            [part._replace(values=carried(part.values)) for part in parts]
            for parts in self._rows[replica].take_gradients()
        ]
        moved = [moved_by(parts, self._encodings) for parts in own]
        return [Load(parts, each.pushed, UPDATING * each.values) for parts, each in zip(own, moved, strict=True)]

    def vectors(self, replica: VirtualReplica) -> dict[str, np.ndarray]:
        return self._rows[replica].vectors()

    def load(self, replica: VirtualReplica, vectors: Mapping[str, np.ndarray]) -> None:
        self._rows[replica].load(vectors)


def _read(tables: ServerTables, part: TableRows) -> None:
    tables.tables[part.table].read(part.ids, part.values)
    if tables.encodings.fetched.encoded:
        part.values[:] = tables.encodings.fetched.carried(part.values)


def moved_by(parts: Sequence[TableRows], encodings: RowEncodings) -> Moved:
    """Return the bytes of parts with a server's rows."""
    asked, answered, pushed = message_bytes(parts, None), answer_bytes(parts, encodings.fetched), encodings.pushed
    return Moved(asked, answered, message_bytes(parts, pushed), sum(values.nbytes for _, _, values in parts))
