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
from mpidl.sparse import unpushed
from mpidl.sparse.messages import Forms, Part, answer_bytes, message_bytes
from mpidl.sparse.server_tables import ServerTables
from mpidl.tables.distinct import distinct
from mpidl.tables.lookups import Lookup, WithTables, gathered
from mpidl.tables.sources import TablesInMemory

#: Seconds of a server's work per byte of rows that it reads and updates: 90 and 150 ns for 16 float32.
READING, UPDATING = 90e-9 / 64, 150e-9 / 64


class Asked:
    """A lookup in a table, whose rows the servers have."""

    def __init__(self, table: int, lookup: Lookup) -> None:
        self.table, self.lookup = table, lookup

    def part(self, server: int) -> Part:
        """Return a server's part of it."""
        own = self.lookup.parts[server]
        return Part(self.table, self.lookup.ids[own], self.lookup.rows[own])

    def answers(self, table: int, ids: np.ndarray) -> bool:
        """Return whether it is for these ids, in this order."""
        return self.table == table and self.lookup.answers(ids)


class ReplicaRows:
    """The lookups of a virtual replica (`mpidl.tables.lookups.RowSource`).

    Attributes
    ----------
    coming : dict of int to simpy.Process
        The processes that bring the rows of batches, by the numbers of these.
    brought : deque of Asked
        Lookups of the present batch, whose rows have come.
    late : list of Asked
        Lookups that only the computation has shown.
    noted : list of list of Lookup
        For each table, those that have a gradient since the last push.
    """

    def __init__(self, servers: Sequence[ServerTables]) -> None:
        self._servers = servers
        self.coming: dict[int, simpy.Process] = {}
        self.brought: deque[Asked] = deque()
        self.late: list[Asked] = []
        self.noted: list[list[Lookup]] = [[] for _ in servers[0].tables]

    def ask(self, table: int, ids: np.ndarray) -> Asked:
        """Return a lookup whose rows are still to be read."""
        found, form = distinct(ids, len(self._servers)), self._servers[0].tables[table]
        rows = np.empty((found.ids.size, form.spec.dimension), form.dtype)
        return Asked(table, Lookup(rows, found, self.noted[table]))

    def look_up(self, table: int, ids: np.ndarray) -> Lookup:
        while self.brought:
            asked = self.brought.popleft()
            if asked.answers(table, ids):
                return asked.lookup
        asked = self.ask(table, ids)
        for server, tables in enumerate(self._servers):
            _read(tables, asked.part(server))
        self.late.append(asked)
        return asked.lookup


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
        self._coming: defaultdict[VirtualReplica, dict[int, simpy.Event]] = defaultdict(dict)
        self._unpushed: Counter[VirtualReplica] = Counter()

    def bring(self, replica: VirtualReplica, batch: Minibatch, coming: Sequence[Minibatch]) -> Process:
        yield self._ask(replica, batch)
        del self._coming[replica][batch.number]
        for each in coming:
            self._ask(replica, each)

    def _ask(self, replica: VirtualReplica, batch: Minibatch) -> simpy.Event:
        environment, own = self._cluster.environment, self._coming[replica]
        if batch.number not in own:
            answers = [environment.process(self.exchange(replica, *each)) for each in enumerate(self._servers)]
            own[batch.number] = environment.all_of(answers)
        return own[batch.number]

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
        self._forms = servers[0].forms

    def begin(self, cluster: VirtualCluster, traffic: Traffic) -> None:
        super().begin(cluster, traffic)
        self._rows: defaultdict[VirtualReplica, ReplicaRows] = defaultdict(partial(ReplicaRows, self._servers))

    def show(self) -> None:
        names = range(len(self._model.tables))
        self._model.rows = TablesInMemory([[each.tables[number] for each in self._servers] for number in names])

    def bring(self, replica: VirtualReplica, batch: Minibatch, coming: Sequence[Minibatch]) -> Process:
        if self._cluster.machines is None:
            return  # The computation reads them.
        rows = self._rows[replica]
        self._ask(replica, batch)
        rows.brought = yield rows.coming.pop(batch.number)
        for each in coming:
            self._ask(replica, each)

    def _ask(self, replica: VirtualReplica, batch: Minibatch) -> None:
        rows = self._rows[replica]
        if batch.number not in rows.coming:
            rows.coming[batch.number] = self._cluster.environment.process(self._bring(replica, batch))

    def _bring(self, replica: VirtualReplica, batch: Minibatch) -> Process:
        """Bring the rows of a batch, and return the lookups."""
        wanted = self._model.wanted(self._split.take(batch)) or ()
        asked = deque(self._rows[replica].ask(*each) for each in wanted)
        yield from self._carry(replica, asked)
        return asked

    def _carry(self, replica: VirtualReplica, asked: Sequence[Asked]) -> Process:
        """Let all servers answer lookups."""
        environment = self._cluster.environment
        yield environment.all_of(
            [environment.process(self._answer(replica, *each)) for each in enumerate(self._parts(asked)) if each[1]]
        )

    def _parts(self, asked: Sequence[Asked]) -> list[list[Part]]:
        """Return the parts of lookups that each server has."""
        found = ([each.part(server) for each in asked] for server in range(len(self._servers)))
        return [[part for part in parts if part.ids.size] for parts in found]

    def _answer(self, replica: VirtualReplica, server: int, parts: Sequence[Part]) -> Process:
        """Carry the ids of rows to a server, and the rows back."""

        def read() -> None:
            for part in parts:
                _read(self._servers[server], part)

        return self.exchange(replica, server, self._moved(parts), read)

    def _moved(self, parts: Sequence[Part]) -> Moved:
        return moved_by(parts, self._forms)

    def computing(self, replica: VirtualReplica) -> None:
        self._model.rows = self._rows[replica]

    def computed(self, replica: VirtualReplica) -> Process:
        rows = self._rows[replica]
        late, rows.late = rows.late, []
        rows.brought.clear()
        if self._cluster.machines is not None and late:
            yield from self._carry(replica, late)
            return
        for parts in self._parts(late):
            self.count(self._moved(parts))

    def push(self, replica: VirtualReplica) -> Sequence[Load]:
        own: list[list[Part]] = [[] for _ in self._servers]
        for table, lookups in enumerate(self._rows[replica].noted):
            if lookups:
                found, gradient = gathered(lookups)
                for parts, part in zip(own, found.parts, strict=True):
                    carried = self._forms.pushed.carried(gradient[part])
                    parts += [Part(table, found.ids[part], carried)] if part.start < part.stop else []
                lookups.clear()
        moved = [self._moved(parts) for parts in own]
        return [Load(parts, each.pushed, UPDATING * each.values) for parts, each in zip(own, moved, strict=True)]

    def vectors(self, replica: VirtualReplica) -> dict[str, np.ndarray]:
        return unpushed.saved(self._model.tables, self._rows[replica].noted)

    def load(self, replica: VirtualReplica, vectors: Mapping[str, np.ndarray]) -> None:
        unpushed.restored(self._model.tables, vectors, len(self._servers), self._rows[replica].noted)


def _read(tables: ServerTables, part: Part) -> None:
    tables.tables[part.table].read(part.ids, part.values)
    if tables.forms.fetched.encoded:
        part.values[:] = tables.forms.fetched.carried(part.values)


def moved_by(parts: Sequence[Part], forms: Forms) -> Moved:
    """Return the bytes of parts with a server's rows."""
    asked, answered, pushed = message_bytes(parts, None), answer_bytes(parts, forms.fetched), forms.pushed
    return Moved(asked, answered, message_bytes(parts, pushed), sum(values.nbytes for _, _, values in parts))
