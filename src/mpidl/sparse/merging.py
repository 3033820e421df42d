"""One message about rows in place of several: gradients of equal ids are summed, and equal ids asked for once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mpidl.sparse.messages import RowEncodings, TableRows, grouped, pack, plain, unpack
from mpidl.sparse.rows import Request
from mpidl.tables.distinct import add_to, distinct
from mpidl.tables.lookups import TableSpec


class MergedRows:
    """Merges messages of workers to one server, in which values are as they are; its own have those `encodings`.

    `most` is the number of bytes of a message.
    """

    def __init__(self, tables: Sequence[TableSpec], encodings: RowEncodings, most: int) -> None:
        self.dimensions, self.encodings, self.most = [table.dimension for table in tables], encodings, most
        self.plain = plain(encodings.fetched.dtype).fetched

    def sums(self, messages: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return messages with the sums of gradients by id."""
        given = [part for message in messages for part in unpack(message, self.dimensions, self.plain)]
        found = []
        for table, own, places, ids in self.by_table(given):
            summed = np.zeros((ids.size, self.dimensions[table]), self.plain.dtype)
            add_to(summed, places, np.concatenate([part.values for part in own]))
            found.append(TableRows(table, ids, summed))
        return [pack(parts, self.encodings.pushed) for parts in grouped(found, self.most)]

    def by_table(self, parts: Sequence[TableRows]) -> Iterator[tuple[int, list[TableRows], np.ndarray, np.ndarray]]:
        """Yield each table, its parts, the place of each of their ids among the distinct ones, and these."""
        for table in sorted({part.table for part in parts}):
            own = [part for part in parts if part.table == table]
            ids, _, places = distinct(np.concatenate([part.ids for part in own]), 1)
            yield table, own, places, ids

    def together(self, requests: Sequence[np.ndarray]) -> RowsTogether:
        """Return requests for each id of several requests once."""
        return RowsTogether(self, requests)


class RowsTogether:
    """Requests for rows that are asked together."""

    def __init__(self, merged: MergedRows, requests: Sequence[np.ndarray]) -> None:
        self._plain, self._encoding = merged.plain, merged.encodings.fetched
        given = [list(unpack(request, merged.dimensions, None)) for request in requests]
        self._rows: dict[int, np.ndarray] = {}
        found, parts = [], dict[int, Iterator[np.ndarray]]()
        for table, own, places, ids in merged.by_table([part for request in given for part in request]):
            self._rows[table] = np.empty((ids.size, merged.dimensions[table]), self._encoding.dtype)
            found.append(TableRows(table, ids, self._rows[table]))
            parts[table] = iter(np.split(places, np.cumsum([part.ids.size for part in own])[:-1]))
        # The places of each request's rows among the distinct ones of a table.
        self._wanted = [[(part.table, next(parts[part.table])) for part in request] for request in given]
        self.questions = [Request.of(group, self._encoding) for group in grouped(found, merged.most)]

    def arrived(self) -> None:
        """Make rows of the answers."""
        for question in self.questions:
            question.fill(self._encoding)

    def answer(self, number: int, answer: np.ndarray) -> None:
        """Write the rows of request `number`, as they are."""
        start = 0
        for table, places in self._wanted[number]:
            rows = self._rows[table]
            stop = start + self._plain.nbytes(places.size * rows.shape[1])
            found = self._plain.read(answer[start:stop], (places.size, rows.shape[1]))
            rows.take(places, axis=0, out=found, mode="clip")
            start = stop
