"""What a job needs for models with tables."""

from __future__ import annotations

import os

from mpidl.engines.mpi.beside import Nothing
from mpidl.job.job import Job
from mpidl.job.ready import ReadyJob
from mpidl.sparse.messages import least_bytes
from mpidl.sparse.remote import RemoteRows
from mpidl.sparse.server_tables import ServerTables
from mpidl.tables.lookups import TableSpec
from mpidl.tables.table import Table

#: Why no process takes over a rank.
OBSTACLE = "the model's tables lie in the memory of servers' processes"


def of_worker(ready: ReadyJob, most: int, servers: int) -> Nothing:
    """Return what a worker exchanges for its model's tables, if any, by messages of at most `most` bytes."""
    job = ready.job
    if not job.original.tables:
        return Nothing()
    ahead = 0 if job.config.run.deterministic else job.config.tables.prefetch
    return RemoteRows(ready.local.host, most, servers, ahead)


def of_server(job: Job, clock: int, servers: int) -> ServerTables | None:
    """Return the part of a server, one of several, of the model's tables, if there are any."""
    if not job.original.tables:
        return None
    tables = [_table(job, spec, servers) for spec in job.original.tables]
    return ServerTables(tables, tables[0].rule, job.dtype, clock)
