"""Mailboxes: how pushes travel from a worker into a server's window.

Each worker has a ring of chunk slots for each of its shards, in the window of the server that holds it. Two counters
make it a queue with one writer and one reader, without locks: `published` (chunks that the worker has written, set by
the worker after their data have arrived) and `consumed` (chunks that the server has applied, set by the server). The
worker learns of free slots and of applied pushes by reading `consumed`: nothing is ever written to a worker, which
does not enter MPI while it computes.

A push travels from its last chunk to its first, as back-propagation computes a gradient, and rings are filled from
their last slot to their first: chunks that are neighbours in the vector are neighbours in the ring, and one transfer
brings several.

A rank may take chunks that servers apply later. Its mailboxes have a third counter, `applied`: the chunks that servers
have applied.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mpidl.transport.capacity import MailboxGeometry
from mpidl.transport.protocol import Header

#: Plain integers, which index arrays faster than an enumeration's.
PUSH, CHUNK, FETCHED, COUNT, FIRST, LAST, ENCODED, MARKED = (int(number) for number in Header)
HEADER = len(Header)
#: Most chunks that a worker publishes at once: each publication costs two round trips.
GROUP = 8


class Names(NamedTuple):
    """Names of the window regions of a shard's rings."""

    published: str
    consumed: str
    headers: str
    slots: str
    applied: str


def names(shard: int) -> Names:
    """Return the names of the window regions of the rings of shard number `shard`."""
    return Names(*(f"{name}/{shard}" for name in Names._fields))


def regions(geometry: MailboxGeometry, shard: int = 0, applied_later: bool = False) -> dict[str, tuple[Any, int]]:
    """Return the window regions of the rings of shard number `shard`; `applied_later` adds the third counter."""
    slots, name = geometry.workers * geometry.slots, names(shard)
    return {
        **({name.applied: (np.int64, geometry.workers)} if applied_later else {}),
        name.published: (np.int64, geometry.workers),
        name.consumed: (np.int64, geometry.workers),
        name.headers: (np.int64, slots * HEADER),
        name.slots: (np.uint8, geometry.workers * geometry.ring),
    }
