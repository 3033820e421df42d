"""Rows of tables in the virtual cluster, and in a run in one process: bytes and times by rows."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import simpy

from mpidl.data.batch import Minibatch
from mpidl.data.dataset import Split
from mpidl.engines.virtual.beside import Nothing
from mpidl.engines.virtual.cluster import VirtualCluster, VirtualReplica
from mpidl.engines.virtual.server import Load, Process
from mpidl.engines.virtual.traffic import Traffic
from mpidl.sparse import unpushed
from mpidl.sparse.messages import Part, answer_bytes, message_bytes
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
        return self.table == table and np.array_equal(self.lookup.ids[self.lookup.places], ids)


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


class VirtualTables(Nothing):
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

    pushes = True

    def __init__(self, model: WithTables, split: Split, servers: Sequence[ServerTables], ahead: int = 0) -> None:
        # A look at a batch ahead must not overwrite the one that is computed.
        self._model, self._split, self._servers, self.ahead = model, split.copy(), servers, ahead
        self._forms = servers[0].forms

    def begin(self, cluster: VirtualCluster, traffic: Traffic) -> None:
        self._cluster, self._traffic = cluster, traffic
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
        machines = self._cluster.machines
        assert machines is not None
        yield self._cluster.environment.process(self._read(replica, server, parts))
        yield from machines.fetch(replica.number, server, answer_bytes(parts, self._forms.fetched))

    def _read(self, replica: VirtualReplica, server: int, parts: Sequence[Part]) -> Process:
        machines = self._cluster.machines
        assert machines is not None
        work = partial(machines.answer, READING * value_bytes(parts))
        yield from self._traffic.occupy(replica, server, message_bytes(parts, None), work)
        for part in parts:
            _read(self._servers[server], part)
        self._cluster.servers[server].done()
        self._count(parts)

    def _count(self, parts: Sequence[Part]) -> None:
        self._cluster.totals.bytes_fetched += message_bytes(parts, None) + answer_bytes(parts, self._forms.fetched)

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
            self._count(parts)

    def push(self, replica: VirtualReplica) -> Sequence[Load]:
        own: list[list[Part]] = [[] for _ in self._servers]
        for table, lookups in enumerate(self._rows[replica].noted):
            if lookups:
                found, gradient = gathered(lookups)
                for parts, part in zip(own, found.parts, strict=True):
                    carried = self._forms.pushed.carried(gradient[part])
                    parts += [Part(table, found.ids[part], carried)] if part.start < part.stop else []
                lookups.clear()
        form = self._forms.pushed
        return [Load(parts, message_bytes(parts, form), UPDATING * value_bytes(parts)) for parts in own]

    def vectors(self, replica: VirtualReplica) -> dict[str, np.ndarray]:
        return unpushed.saved(self._model.tables, self._rows[replica].noted)

    def load(self, replica: VirtualReplica, vectors: Mapping[str, np.ndarray]) -> None:
        unpushed.restored(self._model.tables, vectors, len(self._servers), self._rows[replica].noted)


def _read(tables: ServerTables, part: Part) -> None:
    tables.tables[part.table].read(part.ids, part.values)
    part.values[:] = tables.forms.fetched.carried(part.values)


def value_bytes(parts: Sequence[Part]) -> int:
    """Return the bytes of the values of parts, as a server reads or updates them."""
    return sum(values.nbytes for _, _, values in parts)
