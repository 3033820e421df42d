"""A worker's end: rows are asked for, and their gradients pushed, by the rings of pushes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from mpidl.data.dataset import Split
from mpidl.engines.mpi.group import Waiting
from mpidl.engines.mpi.request_handler import SideChannel
from mpidl.nn.model import CompleteModel
from mpidl.rma.answers import ask, take
from mpidl.rma.worker import WorkerLink
from mpidl.sparse.ahead import LookingAhead
from mpidl.sparse.messages import RowEncodings, TableRows, grouped, pack
from mpidl.sparse.rows import ReplicaRows, Request, RequestedLookup
from mpidl.tables.lookups import Lookup, Wanted
from mpidl.transport.protocol import SIDE_DATA
from mpidl.transport.status import WorkerStatus


class RemoteRows(SideChannel):
    """A model's rows on the servers (`mpidl.tables.lookups.RowSource`).

    `encodings` are those in which rows travel, `most` is the number of bytes of a message, and `ahead` the number of
    batches whose rows are asked for before.
    """

    def __init__(self, model: CompleteModel, encodings: RowEncodings, most: int, servers: int, ahead: int) -> None:
        self._rows, self._model = ReplicaRows(model.tables, servers, encodings), model
        self._encodings, self._most, self._depth = encodings, most, ahead
        # The lookups of the next batches.
        self._ahead: deque[list[RequestedLookup]] = deque()

    def split(self, split: Split) -> Split:
        """Return the training data, for whose next batches rows are asked ahead."""
        if not self._depth:
            return split
        return LookingAhead(split, self._model, self.ask, self.begin, self._depth)

    def bind(self, link: WorkerLink, status: WorkerStatus) -> None:
        """Reach the servers by `link` from now on; the model looks its rows up here."""
        self._link, self._status, self._waiting = link, status, Waiting(link, status)
        self._model.rows = self
        self._questions: list[deque[Request]] = [deque() for _ in link.asked]
        self._asked: list[deque[Request]] = [deque() for _ in link.asked]
        self._pushes: list[deque[tuple[int, np.ndarray]]] = [deque() for _ in link.asked]

    def look_up(self, table: int, ids: np.ndarray) -> Lookup:
        """Return the rows of ids, asked for ahead or now."""
        coming = self._rows.requested_ahead(table, ids) or self._ask([Wanted(table, ids)])[0]
        self._waiting.until(lambda: self._has_arrived(coming))
        return coming.lookup

    def ask(self, wanted: Sequence[Wanted]) -> None:
        """Ask ahead for the lookups of a batch."""
        self._ahead.append(self._ask(wanted))

    def begin(self) -> None:
        """Begin the first batch that was asked for ahead and has not begun."""
        self._rows.present = deque(self._ahead.popleft())

    def push(self) -> None:
        """Send the gradients of all lookups since the last push; the worker's next push follows."""
        with self._status.push:
            for queue, parts in zip(self._pushes, self._rows.take_gradients(), strict=True):
                for group in (group for part in parts for group in grouped([part], self._most)):
                    message = pack(group, self._encodings.pushed)
                    self._status.figures["bytes_pushed"] += message.size if self._link.direct else 0
                    queue.append((SIDE_DATA, message))
        self._waiting.until(self._send_pushes)

    def _send_pushes(self) -> bool:
        with self._status.push:
            return self._link.pushes.send_side_data(self._pushes)

    def _ask(self, wanted: Sequence[Wanted]) -> list[RequestedLookup]:
        """Ask for lookups, and return them."""
        with self._status.fetch:
            found = [self._rows.request(*each) for each in wanted]
            for server, questions in enumerate(self._questions):
                # The `table` field holds the number of the lookup until the request is made.
                parts = [each.part(server)._replace(table=number) for number, each in enumerate(found)]
                questions += [self._question(group, found) for group in grouped(parts, self._most)]
            self._send()
        return found

    def _question(self, group: Sequence[TableRows], found: Sequence[RequestedLookup]) -> Request:
        """Return the request for parts whose `table` is the number of their lookup in `found`."""
        lookups = [found[part.table] for part in group]
        for each in lookups:
            each.answers += 1
        parts = [part._replace(table=each.table) for part, each in zip(group, lookups, strict=True)]
        return Request.of(parts, self._encodings.fetched, lookups)

    def _send(self) -> None:
        """Send requests as far as there is room for them and for their answers."""
        for asked, sent in zip(self._asked, ask(self._link.pushes, self._link.asked, self._questions), strict=True):
            asked.extend(sent)

    def _has_arrived(self, coming: RequestedLookup) -> bool:
        """Take the answers that have arrived, and return whether all for a lookup have."""
        if coming.answers:
            with self._status.fetch:
                self._send()
                for server, count in enumerate(take(self._link.asked)):
                    for _ in range(count):
                        self._note(self._asked[server].popleft())
        return not coming.answers

    def _note(self, request: Request) -> None:
        request.fill(self._encodings.fetched)
        if self._link.direct:
            answer = sum(target.nbytes for target in request.targets)
            self._status.figures["bytes_fetched"] += request.message.size + answer
        for each in request.lookups:
            each.answers -= 1

    def vectors(self) -> dict[str, np.ndarray]:
        return self._rows.vectors()

    def load(self, vectors: Mapping[str, np.ndarray]) -> None:
        self._rows.load(vectors)
