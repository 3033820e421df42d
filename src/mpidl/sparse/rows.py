"""A replica's lookups in tables on servers: what both engines do with them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mpidl.sparse.messages import RowEncoding, RowEncodings, TableRows, pack
from mpidl.tables.distinct import distinct
from mpidl.tables.lookups import Lookup, TableSpec, gathered


class RequestedLookup:
    """A lookup in a table, and the number of answers with its rows that are still to come."""

    def __init__(self, table: int, lookup: Lookup) -> None:
        self.table, self.lookup, self.answers = table, lookup, 0

    def part(self, server: int) -> TableRows:
        """Return a server's part of it."""
        own = self.lookup.parts[server]
        return TableRows(self.table, self.lookup.ids[own], self.lookup.rows[own])


class Request(NamedTuple):
    """A request to a server: the message, the rows that it asks for, where their bytes go, and who waits for them."""

    message: np.ndarray
    rows: Sequence[np.ndarray]
    targets: Sequence[np.ndarray]
    lookups: Sequence[RequestedLookup] = ()

    @classmethod
    def of(cls, parts: Sequence[TableRows], encoding: RowEncoding, lookups: Sequence[RequestedLookup] = ()) -> Request:
        """Return the request for parts, whose values are to be the rows."""
        rows = [part.values for part in parts]
        return cls(pack(parts, None), rows, [encoding.target(each) for each in rows], lookups)

    def fill(self, encoding: RowEncoding) -> None:
        """Make rows of the bytes that have arrived."""
        for rows, target in zip(self.rows, self.targets, strict=True):
            encoding.fill(rows, target)


class ReplicaRows:
    """The lookups of a replica.

    Attributes
    ----------
    present : deque of RequestedLookup
        Lookups of the present batch that were requested ahead.
    unpushed : list of list of Lookup
        For each table, those that have a gradient since the last push.
    """

    def __init__(self, tables: Sequence[TableSpec], servers: int, encodings: RowEncodings) -> None:
        self.tables, self.servers, self.encodings = tables, servers, encodings
        self.present: deque[RequestedLookup] = deque()
        self.unpushed: list[list[Lookup]] = [[] for _ in tables]

    def request(self, table: int, ids: np.ndarray) -> RequestedLookup:
        """Return a lookup whose rows are still to be read."""
        found = distinct(ids, self.servers)
        rows = np.empty((found.ids.size, self.tables[table].dimension), self.encodings.fetched.dtype)
        return RequestedLookup(table, Lookup(rows, found, self.unpushed[table]))

    def requested_ahead(self, table: int, ids: np.ndarray) -> RequestedLookup | None:
        """Return the lookup of ids that was requested ahead; those before it aren't made."""
        while self.present:
            requested = self.present.popleft()
            if requested.table == table and requested.lookup.answers(ids):
                return requested
        return None

    def take_gradients(self) -> list[list[TableRows]]:
        """Return, for each server, the gradients since the last push, table by table."""
        found: list[list[TableRows]] = [[] for _ in range(self.servers)]
        for table, lookups in enumerate(self.unpushed):
            if lookups:
                (ids, own, _), gradient = gathered(lookups)
                for parts, part in zip(found, own, strict=True):
                    parts += [TableRows(table, ids[part], gradient[part])] if part.start < part.stop else []
                lookups.clear()
        return found

    def vectors(self) -> dict[str, np.ndarray]:
        """Return what isn't pushed as arrays of a checkpoint: "unpushed/NAME/ids" and "unpushed/NAME/gradients"."""
        found: dict[str, np.ndarray] = {}
        for table, own in zip(self.tables, self.unpushed, strict=True):
            if own:
                (ids, _, _), gradients = gathered(own)
                found |= {f"unpushed/{table.name}/ids": ids, f"unpushed/{table.name}/gradients": gradients.copy()}
        return found

    def load(self, vectors: Mapping[str, np.ndarray]) -> None:
        """Add what `vectors` has returned, if there is any."""
        for table, own in zip(self.tables, self.unpushed, strict=True):
            if (ids := vectors.get(f"unpushed/{table.name}/ids")) is not None:
                given, found = vectors[f"unpushed/{table.name}/gradients"], distinct(ids, self.servers)
                gradients = np.empty_like(given)
                gradients[found.places] = given
                Lookup(np.empty_like(given), found, own).gradient = gradients
