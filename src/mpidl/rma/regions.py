"""The window regions of each rank, by which windows are allocated and memory is planned. Works without MPI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mpidl.parameters.ranges import within
from mpidl.shards import ledger
from mpidl.transport.capacity import MOST_SIDE_DATA, Capacity, MailboxGeometry
from mpidl.transport.coordination import NOTICE
from mpidl.transport.protocol import (
    EVALUATIONS,
    GIVEN_BACK,
    GIVEN_BACK_WIDTH,
    SERVER_STATUS,
    TAKINGS_ROW,
    WORKER_STATUS,
    ChunkHeader,
    Control,
    ShardClock,
)
from mpidl.transport.routes import Routes
from mpidl.wire import encoded_bytes

#: (dtype, count) by name.
Regions = Mapping[str, tuple[Any, int]]
#: Records that the coordinator keeps in turn: a death while one is written leaves the one before.
RECORDS = 2
#: Bytes of the longest record of a job without workers, and what each worker adds.
LONGEST_RECORD, RECORD_PER_WORKER = 32 << 10, 16


class ShardRegions(NamedTuple):
    """Names of the window regions of a shard, beside those of its vectors and its ledger."""

    clock: str
    # Mailboxes; see `mpidl.rma.mailboxes`.
    published: str
    consumed: str
    headers: str
    slots: str
    applied: str
    # Encoded fetches; see `mpidl.rma.differences`.
    asked: str
    answered: str
    copies: str
    encoded: str
    # Answers to what workers ask for beside pushes; see `mpidl.rma.answers`.
    side_answered: str
    side_answers: str


def of_shard(shard: int) -> ShardRegions:
    """Return the names of the window regions of shard number `shard`."""
    return ShardRegions(*(f"{name}/{shard}" for name in ShardRegions._fields))


def regions(routes: Routes, rank: int) -> Regions:
    """Return the window regions of a rank; a worker has none."""
    if rank == routes.roles.coordinator:
        return _of_coordinator(routes)
    if rank in routes.roles.servers:
        return _of_server(routes, routes.roles.servers.index(rank))
    return routes.regions(rank)


def nbytes(found: Regions) -> int:
    """Return the bytes of regions, without the gaps between them."""
    return sum(np.dtype(kind).itemsize * count for kind, count in found.values())


def mailboxes(geometry: MailboxGeometry, shard: int = 0, applied_later: bool = False) -> dict[str, tuple[Any, int]]:
    """Return the window regions of the rings of shard number `shard`; `applied_later` adds the third counter."""
    slots, name = geometry.workers * geometry.slots, of_shard(shard)
    return {
        **({name.applied: (np.int64, geometry.workers)} if applied_later else {}),
        name.published: (np.int64, geometry.workers),
        name.consumed: (np.int64, geometry.workers),
        name.headers: (np.int64, slots * len(ChunkHeader)),
        name.slots: (np.uint8, geometry.workers * geometry.ring),
    }


def answers(workers: int, shard: int, slot: int) -> dict[str, tuple[Any, int]]:
    """Return the window regions of the answers of shard number `shard` to `workers`, of at most `slot` bytes each."""
    name = of_shard(shard)
    return {name.side_answered: (np.int64, workers), name.side_answers: (np.uint8, workers * MOST_SIDE_DATA * slot)}


def _differences(capacity: Capacity, workers: int, shard: int) -> dict[str, tuple[Any, int]]:
    """Return the window regions of the encoded fetches of shard number `shard` by `workers`; none if they aren't."""
    if (wire := capacity.wire_fetch) is None:
        return {}
    name, part = of_shard(shard), capacity.shards[shard]
    encoded = encoded_bytes(wire, part.size, capacity.dtype, within(capacity.statistics, part))
    return {
        name.asked: (np.int64, workers),
        name.answered: (np.int64, workers),
        name.copies: (capacity.dtype, workers * part.size),
        name.encoded: (np.uint8, workers * encoded),
    }


def _of_coordinator(routes: Routes) -> Regions:
    capacity, roles, workers = routes.capacity, routes.roles, len(routes.workers)
    found: dict[str, tuple[Any, int]] = {
        "control": (np.int64, len(Control)),
        "clocks": (np.int64, len(roles.replicas)),
        "workers": (WORKER_STATUS, workers),
        "servers": (SERVER_STATUS, len(capacity.shards)),
        "intermediaries": (WORKER_STATUS, len(roles.intermediaries)),
        "sums": (np.float64, workers * capacity.sums),
        "takings": (np.int64, workers * TAKINGS_ROW),
        "given_back": (np.int64, GIVEN_BACK * GIVEN_BACK_WIDTH),
        "evaluated": (np.float64, workers * EVALUATIONS * (2 + capacity.figures)),
        "evaluations": (np.int64, 2 * workers),
        "record": (np.uint8, RECORDS * (LONGEST_RECORD + RECORD_PER_WORKER * workers)),
    }
    units = capacity.units
    return found | ({"notice": (np.int64, NOTICE), "copies": (np.int64, units)} if units else {})


def _of_server(routes: Routes, number: int) -> Regions:
    capacity = routes.capacity
    found: dict[str, tuple[Any, int]] = {"control": (np.int64, len(Control))}
    if capacity.units:
        found["done"] = np.uint8, capacity.units
    for shard in capacity.held_by(number):
        part = capacity.shards[shard]
        found |= {
            **{f"{name}/{shard}": (capacity.dtype, part.size) for name in capacity.vectors},
            of_shard(shard).clock: (np.int64, len(ShardClock)),
            ledger.region(shard): (np.int64, ledger.size(routes.rings)),
            **mailboxes(capacity.mailboxes(shard, routes.rings), shard),
            **(answers(routes.readers, shard, capacity.side_data) if capacity.side_data else {}),
            **_differences(capacity, routes.readers, shard),
        }
    return found
