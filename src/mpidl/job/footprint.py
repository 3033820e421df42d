"""The memory of each rank, computed once: windows are allocated by it, nodes are checked for it, plans show it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mpidl.algorithms import Exchange
from mpidl.algorithms.coordination import matrices
from mpidl.errors import UsageError
from mpidl.job.fill import held_shards
from mpidl.job.job import Job
from mpidl.job.placed import PlacedJob
from mpidl.job.takeover import fixed
from mpidl.metrics.figures import Figures
from mpidl.nn.evaluation import BATCH
from mpidl.parameters import Range
from mpidl.partition.plan import Plan
from mpidl.rma.regions import nbytes, regions
from mpidl.tables.entries import ENTRY
from mpidl.transport.capacity import SIDE_DATA_BYTES, Capacity, answer_bytes
from mpidl.transport.routes import Routes

#: Bytes of a message beside a row.
ROW_BYTES = 32
#: Bytes of a row beside its values and its rule's state: its entry and, about, its id in the index.
ENTRY_BYTES = ENTRY.itemsize + 27
#: Bytes of an engine's state of a replica beside its vectors.
REPLICA = 10_000


class Footprint(NamedTuple):
    """The most bytes that a rank needs at any time, by use; a vector that ranks share is counted once.

    `tables` are those whose rows have a largest number. `evaluation` and `checkpoint` are of copies that exist for a
    while only.
    """

    parameters: int = 0
    gradient: int = 0
    state: int = 0
    tables: int = 0
    exchange: int = 0
    activations: int = 0
    evaluation: int = 0
    checkpoint: int = 0


def capacity_of(placed: PlacedJob, servers: int, figures: Figures) -> Capacity:
    """Return the sizes that the transport of a job on this many servers must provide for."""
    job, algorithm, held = placed.job, placed.job.algorithm, held_shards(placed, servers)
    return Capacity(
        [each.range for each in held],
        job.dtype,
        wire=algorithm.encoding(),
        wire_fetch=algorithm.fetch_encoding(),
        within_nodes=job.config.run.deterministic,
        sums=len(job.evaluated) * figures.size,
        figures=len(figures.names),
        units=placed.units,
        shared_vectors=1 + len(job.states) if algorithm.exchange is Exchange.SHARED_MEMORY else 0,
        statistics=placed.statistics,
        held=held,
        slices=placed.slices,
        evaluated=placed.evaluated,
        kept=() if any(fixed(job.config)) else job.states,
        side_data=_side_data(job),
    )


def _side_data(job: Job) -> int:
    """Return the most bytes of a message with rows, which has at least one; 0 for a model without tables."""
    longest = max((table.dimension for table in job.original.tables), default=0)
    return max(SIDE_DATA_BYTES, ROW_BYTES + 8 * (longest * job.dtype.itemsize // 8 + 1)) if longest else 0


def rows_of(job: Job) -> Iterator[tuple[str, int | None, int]]:
    """Yield the name of each table of the model, its largest number of rows, if known, and a row's bytes on servers."""
    section = job.config.tables
    vectors = 1 + len(section.rule_beside(job.config.rule).states)
    for table in job.original.tables:
        bounds = [int(each) for each in (table.rows, section.max_rows) if each is not None]
        yield table.name, min(bounds, default=None), vectors * table.dimension * job.dtype.itemsize + ENTRY_BYTES


def _tables(job: Job) -> int:
    """Return the bytes of all rows of the model's tables, as far as their largest number is known."""
    return sum((rows or 0) * nbytes for _, rows, nbytes in rows_of(job))


def state_bytes(job: Job, own: int, replicas: int = 1) -> int:
    """Return the bytes that a shard with a number of parameters keeps beside them, without tables."""
    vectors = len(job.states) + job.algorithm.shard_policy(replicas).vectors
    columns = len(matrices(job.algorithm)) * job.original.layout.size * np.dtype(np.float64).itemsize
    return own * (vectors * job.dtype.itemsize + columns)


def footprints(placed: PlacedJob, routes: Routes) -> list[Footprint]:
    """Return the memory of each rank. Vectors that only some algorithms keep on workers are not counted."""
    roles, capacity, itemsize = routes.roles, routes.capacity, placed.job.dtype.itemsize
    whole = placed.layout.size * itemsize
    found = [Footprint()] * len(roles.names())
    found[roles.coordinator] = Footprint(exchange=nbytes(regions(routes, roles.coordinator)))
    for number, rank in enumerate(roles.servers):
        parameters = sum(capacity.shards[shard].size for shard in capacity.held_by(number))
        own, state = parameters * itemsize, state_bytes(placed.job, parameters, placed.replicas)
        exchange = nbytes(regions(routes, rank)) - own * len(capacity.vectors)
        tables = _tables(placed.job) // len(roles.servers)
        found[rank] = Footprint(own, state=state, tables=tables, exchange=exchange, checkpoint=own + state + tables)
    of_intermediaries: dict[int, Footprint] = {}  # by how many workers they serve
    for rank, workers in zip(roles.intermediaries, roles.served, strict=True):
        if len(workers) not in of_intermediaries:
            exchange = nbytes(regions(routes, rank)) - whole + routes.side_data(rank)
            of_intermediaries[len(workers)] = Footprint(whole, exchange=exchange)
        found[rank] = of_intermediaries[len(workers)]
    for partition, slice in enumerate(placed.slices):
        worker, fetchers = _worker(placed, capacity, partition, slice), set(roles.fetchers(partition))
        direct = worker._replace(exchange=worker.exchange + _directly(placed, capacity, partition, slice))
        shards = {capacity.held[shard].holder: 0 for shard in capacity.of_partition(partition)}
        for shard in capacity.of_partition(partition):
            shards[capacity.held[shard].holder] += capacity.shards[shard].size * itemsize
        for number, replica in enumerate(roles.replicas):
            rank = replica[partition]
            found[rank] = direct if rank in fetchers else worker
            if not roles.servers:
                found[rank] = _with_shard(found[rank], placed, shards.get(number, 0))
    return found


def _worker(placed: PlacedJob, capacity: Capacity, partition: int, slice: Range) -> Footprint:
    """Return the memory of a worker of a partition without what it exchanges with servers."""
    job, plan, parameters = placed.job, placed.plan, slice.size
    samples = max(job.config.data.batch, min(BATCH, (job.dataset.test or job.dataset.train).samples))
    if plan is None:
        activations = job.original.activation_bytes(samples) or 0
    elif isinstance(plan, Plan):
        parameters = plan.parameters[partition]
        # What a plan counts includes the vectors.
        activations = max(0, plan.memory(samples)[partition] - 2 * parameters) * job.dtype.itemsize
    else:
        activations = 0
    own = parameters * job.dtype.itemsize
    return Footprint(
        own,
        gradient=own,
        exchange=own if job.algorithm.streamed else 0,  # a copy that follows the shards
        activations=activations,
        evaluation=0 if job.algorithm.exchange is Exchange.SHARED_MEMORY else own,
    )


def _directly(placed: PlacedJob, capacity: Capacity, partition: int, slice: Range) -> int:
    """Return the bytes by which a worker exchanges encoded vectors with servers: a copy, answers and a residual."""
    if placed.job.algorithm.exchange is not Exchange.SERVERS:
        return 0
    own, found = slice.size * placed.job.dtype.itemsize, 0
    if capacity.wire_fetch is not None:
        found += own + answer_bytes(capacity, [capacity.shards[shard] for shard in capacity.of_partition(partition)])
    return found + (0 if capacity.wire is None else own)


def _with_shard(found: Footprint, placed: PlacedJob, own: int) -> Footprint:
    """Return the memory of a worker that holds a shard of `own` bytes."""
    states, reduces = len(placed.job.states), placed.job.algorithm.exchange is Exchange.REDUCTION
    return found._replace(
        parameters=found.parameters + own,
        state=own * states,
        checkpoint=own * (1 + states),
        exchange=found.exchange + (own * placed.replicas if reduces else 0),  # a part of each worker's vector
    )


def in_one_process(placed: PlacedJob, intermediaries: int = 0) -> Footprint:
    """Return the memory of a run in one process with all its replicas, and with a number of virtual intermediaries."""
    job, replicas, vector = placed.job, placed.replicas, placed.layout.size * placed.job.dtype.itemsize
    batch = min(job.config.data.batch, job.dataset.train.samples)
    return Footprint(
        parameters=(2 + replicas + 4 * intermediaries) * vector,  # shards, model and replicas; an intermediary has four
        gradient=vector,
        state=state_bytes(job, placed.layout.size, replicas),
        tables=_tables(job),
        exchange=replicas * REPLICA,
        activations=job.original.activation_bytes(batch) or 0,
    )


def check_memory(placed: PlacedJob, found: Sequence[Footprint]) -> None:
    """Raise UsageError unless what ranks on this machine need all the time fits into its memory."""
    job, samples, size = placed.job, placed.job.portions.samples, placed.layout.size
    square = f" with a matrix of {size:,} x {size:,} elements" if matrices(job.algorithm) else ""
    vectors = sum(each.parameters + each.gradient + each.state + each.exchange for each in found)
    parts = {
        f"{size:,} parameters{square}": vectors,
        f"batches of {job.config.data.batch:,}": sum(each.activations for each in found),
        f"{samples:,} samples": 8 * samples,  # their order in an epoch
    }
    needed, present = sum(parts.values()), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > present:
        most = max(parts, key=lambda part: parts[part])
        raise UsageError(f"{most} take {parts[most] / 1e9:.3g} GB, this machine has {present / 1e9:.3g} GB of memory")
