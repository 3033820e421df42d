"""What a job needs for models with tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mpidl.engines.virtual.handler import VirtualSideChannel
from mpidl.job.job import Job
from mpidl.job.placed import PlacedJob
from mpidl.job.ready import ReadyJob
from mpidl.nn.model import CompleteModel
from mpidl.rules import Rule
from mpidl.shards.shard import Shard
from mpidl.sparse.merging import MergedRows
from mpidl.sparse.messages import RowEncoding, RowEncodings, TableRows, plain
from mpidl.sparse.saved import resume
from mpidl.sparse.server_tables import ServerTables
from mpidl.sparse.virtual import Moved, PredictedRows, VirtualTables, moved_by
from mpidl.tables.distinct import distinct
from mpidl.tables.lookups import TableSpec
from mpidl.tables.table import Table
from mpidl.wire import parse

if TYPE_CHECKING:
    from mpidl.engines.mpi.request_handler import SideChannel

#: Most rows of a server's part of a table, and rows beyond those that it keeps, which an update may add.
LARGEST, BEYOND = 2**31 - 2, 1 << 20


def of_worker(ready: ReadyJob, most: int, servers: int, direct: bool) -> SideChannel:
    """Return what a worker exchanges for its model's tables, if any, by messages of at most `most` bytes.

    They are encoded if they travel to servers directly.
    """
    # Runs in one process need no MPI.
    from mpidl.engines.mpi.request_handler import SideChannel
    from mpidl.sparse.remote import RemoteRows

    job = ready.job
    if not job.original.tables:
        return SideChannel()
    encodings = _encodings(job) if direct else plain(job.dtype)
    return RemoteRows(ready.local.host, encodings, most, servers, _ahead(job, ready.placed.replicas))


def of_intermediary(job: Job, most: int) -> MergedRows | None:
    """Return what makes fewer messages of several workers', of at most `most` bytes; None without tables."""
    return MergedRows(job.original.tables, _encodings(job), most) if job.original.tables else None


def in_one_process(placed: PlacedJob, model: CompleteModel, shards: Sequence[Shard], alone: bool) -> VirtualSideChannel:
    """Put the model's tables beside the shards, if there are any, and return what replicas exchange for them.

    A replica that is `alone`, without a virtual cluster, asks for nothing ahead.
    """
    job, servers = placed.job, []
    if not job.original.tables:
        return VirtualSideChannel()
    if not alone:
        job.config.topology.check_direct("but virtual clusters have none for tables")
    for number, shard in enumerate(shards):
        found = of_server(placed, shard.clock, number, len(shards))
        assert found is not None
        shard.side_state = found
        servers.append(found)
    return VirtualTables(model, job.dataset.train, servers, 0 if alone else _ahead(job, placed.replicas))


def _ahead(job: Job, replicas: int) -> int:
    """Return the number of batches whose rows are asked for ahead: by default none where that would change a run."""
    run, depth = job.config.run, job.config.tables.prefetch
    if run.deterministic:
        return 0
    return min(1, replicas - 1) if depth is None else depth


def predicted(job: Job, servers: int, replicas: int, scale: float) -> VirtualSideChannel:
    """Return the traffic of the rows of the job's first batch, of bytes in units of `scale`, without the rows.

    Return that of nothing if the model has no tables, or doesn't say which rows a batch needs.
    """
    if not job.original.tables:
        return VirtualSideChannel()
    wanted = job.original.wanted(job.dataset.train.take(job.portions.minibatches(0)[0]))
    parts: list[list[TableRows]] = [[] for _ in range(servers)]
    for table, ids in wanted or ():
        found, dimension = distinct(ids, servers), job.original.tables[table].dimension
        for server, own in zip(parts, found.parts, strict=True):
            part = found.ids[own]
            server.append(TableRows(table, part, np.empty((part.size, dimension), job.dtype)))
    moved = (moved_by(each, _encodings(job)) for each in parts)
    return PredictedRows([Moved(*(nbytes / scale for nbytes in each)) for each in moved], _ahead(job, replicas))


def _encodings(job: Job) -> RowEncodings:
    """Return the encodings of rows: wire formats that keep some of the values, or the signs, are for vectors alone."""
    wires = job.algorithm.wire, job.algorithm.wire_fetch
    pushed, fetched = (RowEncoding(job.dtype, parse(wire) if wire in ("bf16", "int8") else None) for wire in wires)
    return RowEncodings(pushed, fetched)


def of_server(placed: PlacedJob, clock: int, number: int, servers: int) -> ServerTables | None:
    """Return a server's part of the model's tables, given its shard's clock; None if there are no tables."""
    job = placed.job
    if not job.original.tables:
        return None
    rule = job.config.tables.rule_beside(job.config.rule)
    tables = [_table(job, spec, rule, servers) for spec in job.original.tables]
    for table in tables:
        table.warm()
    found = ServerTables(tables, rule, _encodings(job), clock)
    if job.checkpoint is not None:
        resume(found, job.checkpoint, number, servers, job.same_algorithm)
    else:
        for table in tables:
            for ids, rows in job.first_values.rows(table.spec, number, servers):
                table.begin(ids, rows)
    return found


def _table(job: Job, spec: TableSpec, rule: Rule, servers: int) -> Table:
    """Return a server's part of a table, without rows."""
    settings = job.config.tables
    most = None if settings.max_rows is None else -(-int(settings.max_rows) // servers)
    row = (1 + len(rule.states)) * spec.dimension * job.dtype.itemsize
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    bounds = (LARGEST, memory // row, spec.rows, None if most is None else most + BEYOND)
    return Table(
        spec, rule, capacity=min(each for each in bounds if each is not None), seed=job.config.run.seed,
        dtype=job.dtype, max_rows=most, admission=settings.admission,
        max_age=None if settings.max_age is None else int(settings.max_age),
    )  # fmt: skip
