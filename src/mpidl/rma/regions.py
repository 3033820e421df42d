"""The window regions of each rank, by which windows are allocated and memory is planned. Works without MPI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mpidl.rma import answers, differences, mailboxes, record
from mpidl.shards import ledger
from mpidl.transport.protocol import (
    EVALUATIONS,
    GIVEN_BACK,
    GIVEN_BACK_WIDTH,
    NOTICE,
    SERVER_STATUS,
    TAKINGS_ROW,
    WORKER_STATUS,
    Control,
    ShardClock,
)
from mpidl.transport.routes import Routes

#: (dtype, count) by name.
Regions = Mapping[str, tuple[Any, int]]


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
        "record": (np.uint8, record.SLOTS * (record.LONGEST + record.PER_WORKER * workers)),
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
            f"clock/{shard}": (np.int64, len(ShardClock)),
            ledger.region(shard): (np.int64, ledger.size(routes.rings)),
            **mailboxes.regions(capacity.mailboxes(shard, routes.rings), shard),
        }
        if capacity.beside:
            found |= answers.regions(routes.readers, shard, capacity.beside)
        if (wire := capacity.wire_fetch) is not None:
            found |= differences.regions(routes.readers, part, capacity.dtype, wire, shard, capacity.statistics)
    return found
