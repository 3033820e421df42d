"""A worker's end: rows are asked for, and their gradients pushed, by the rings of pushes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mpidl.data.dataset import Split
from mpidl.engines.mpi.group import Waiting
from mpidl.engines.mpi.request_handler import SideChannel
from mpidl.nn.model import CompleteModel
from mpidl.rma.answers import ask, take
from mpidl.rma.worker import WorkerLink
from mpidl.sparse import unpushed
from mpidl.sparse.ahead import LookingAhead
from mpidl.sparse.messages import Forms, Part, Request, grouped, pack
from mpidl.tables.distinct import Distinct, distinct
from mpidl.tables.lookups import Lookup, Wanted, gathered
from mpidl.transport.protocol import BESIDE
from mpidl.transport.status import WorkerStatus


class Question(NamedTuple):
    """A request to a server, and the lookups that wait for its answer."""

    request: Request
    lookups: Sequence[Coming]

    @property
    def message(self) -> np.ndarray:
        return self.request.message

    @property
    def targets(self) -> Sequence[np.ndarray]:
        return self.request.targets


class Coming:
    """A lookup in a table, and the number of answers that it waits for."""

    def __init__(self, table: int, lookup: Lookup) -> None:
        self.table, self.lookup, self.answers = table, lookup, 0


class RemoteRows(SideChannel):
    """A model's rows on the servers (`mpidl.tables.lookups.RowSource`).

    `forms` are those in which rows travel, `most` is the number of bytes of a message, and `ahead` the number of
    batches whose rows are asked for before.
    """

    def __init__(self, model: CompleteModel, forms: Forms, most: int, servers: int, ahead: int) -> None:
        self._forms, self._model, self._tables, self._dtype = forms, model, model.tables, model.dtype
        self._most, self._servers, self._depth = most, servers, ahead
        # The lookups of the present batch, and of the next ones.
        self._present: deque[Coming] = deque()
        self._ahead: deque[list[Coming]] = deque()
        self._with_gradient: list[list[Lookup]] = [[] for _ in self._tables]

    def split(self, split: Split) -> Split:
        """Return the training data, for whose next batches rows are asked ahead."""
        return LookingAhead(split, self._model, self, self._depth) if self._depth else split

    def bind(self, link: WorkerLink, status: WorkerStatus) -> None:
        """Reach the servers by `link` from now on; the model looks its rows up here."""
        self._link, self._status, self._waiting = link, status, Waiting(link, status)
        self._model.rows = self
        self._questions: list[deque[Question]] = [deque() for _ in link.asked]
        self._asked: list[deque[Question]] = [deque() for _ in link.asked]
        self._pushes: list[deque[tuple[int, np.ndarray]]] = [deque() for _ in link.asked]

    def look_up(self, table: int, ids: np.ndarray) -> Lookup:
        """Return the rows of ids, asked for ahead or now."""
        coming = self._asked_ahead(table, ids) or self._ask([Wanted(table, ids)])[0]
        self._waiting.until(lambda: self._has_arrived(coming))
        return coming.lookup

    def _asked_ahead(self, table: int, ids: np.ndarray) -> Coming | None:
        """Return the lookup of ids that was asked for ahead; those before it aren't made."""
        while self._present:
            coming = self._present.popleft()
            if coming.table == table and coming.lookup.answers(ids):
                return coming
        return None

    def ask(self, wanted: Sequence[Wanted]) -> None:
        """Ask ahead for the lookups of a batch."""
        self._ahead.append(self._ask(wanted))

    def begin(self) -> None:
        """Begin the first batch that was asked for ahead and has not begun."""
        self._present = deque(self._ahead.popleft())

    def push(self) -> None:
        """Send the gradients of all lookups since the last push; the worker's next push follows."""
        with self._status.push:
            for table, lookups in enumerate(self._with_gradient):
                if lookups:
                    found, gradient = gathered(lookups)
                    self._queue(table, found, gradient)
                    lookups.clear()
        self._waiting.until(self._send_pushes)

    def _queue(self, table: int, found: Distinct, gradient: np.ndarray) -> None:
        for queue, own in zip(self._pushes, found.parts, strict=True):
            for parts in grouped([Part(table, found.ids[own], gradient[own])], self._most):
                message = pack(parts, self._forms.pushed)
                self._status.figures["bytes_pushed"] += message.size if self._link.direct else 0
                queue.append((BESIDE, message))

    def _send_pushes(self) -> bool:
        with self._status.push:
            return self._link.pushes.send_beside(self._pushes)

    def _ask(self, wanted: Sequence[Wanted]) -> list[Coming]:
        """Ask for lookups, and return them."""
        found = []
        parts: list[list[Part]] = [[] for _ in self._questions]
        with self._status.fetch:
            for table, ids in wanted:
                own = distinct(ids, self._servers)
                rows = np.empty((own.ids.size, self._tables[table].dimension), self._dtype)
                found.append(Coming(table, Lookup(rows, own, self._with_gradient[table])))
                for server, part in zip(parts, own.parts, strict=True):
                    server.append(Part(len(found) - 1, own.ids[part], rows[part]))
            for questions, server in zip(self._questions, parts, strict=True):
                for group in grouped(server, self._most):
                    questions.append(self._question(group, found))
            self._send()
        return found

    def _question(self, group: Sequence[Part], found: Sequence[Coming]) -> Question:
        """Return the request for parts, which have the numbers of lookups in the place of their tables."""
        lookups = [found[part.table] for part in group]
        for each in lookups:
            each.answers += 1
        parts = [part._replace(table=each.table) for part, each in zip(group, lookups, strict=True)]
        return Question(Request.of(parts, self._forms.fetched), lookups)

    def _send(self) -> None:
        """Send requests as far as there is room for them and for their answers."""
        for asked, sent in zip(self._asked, ask(self._link.pushes, self._link.asked, self._questions), strict=True):
            asked.extend(sent)

    def _has_arrived(self, coming: Coming) -> bool:
        """Take the answers that have arrived, and return whether all for a lookup have."""
        if coming.answers:
            with self._status.fetch:
                self._send()
                for server, count in enumerate(take(self._link.asked)):
                    for _ in range(count):
                        self._note(self._asked[server].popleft())
        return not coming.answers

    def _note(self, question: Question) -> None:
        question.request.fill(self._forms.fetched)
        if self._link.direct:
            answer = sum(target.nbytes for target in question.targets)
            self._status.figures["bytes_fetched"] += question.message.size + answer
        for each in question.lookups:
            each.answers -= 1

    # Checkpoints.

    def vectors(self) -> dict[str, np.ndarray]:
        return unpushed.saved(self._tables, self._with_gradient)

    def load(self, vectors: Mapping[str, np.ndarray]) -> None:
        unpushed.restored(self._tables, vectors, self._servers, self._with_gradient)
