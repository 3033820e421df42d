"""What each worker has taken, and what others give back, in the coordinator's memory, which outlives the workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpidl.rma.backoff import Backoff
from mpidl.rma.counters import Counter
from mpidl.rma.verbs import RemoteMemory
from mpidl.transport.protocol import GIVEN_BACK_WIDTH, TAKINGS, TAKINGS_ROW, Control, GivenBack, Taking


class Takings:
    """A worker's notes of what it takes, in the memory of the coordinator, `rank`.

    There are `workers` workers; `backoff` waits for others. The first word is twice the number of notes, and odd while
    the worker takes another ticket.
    """

    def __init__(self, window: RemoteMemory, rank: int, worker: int, workers: int, backoff: Backoff) -> None:
        self._window, self._rank, self._first, self._backoff = window.to(rank), rank, worker * TAKINGS_ROW, backoff
        self._others = [each * TAKINGS_ROW for each in range(workers) if each != worker]
        self._tickets, self._noted = (
            Counter(self._window, self._rank, "control", each) for each in (Control.TICKETS, Control.NOTED)
        )
        self._word, self._entry = np.zeros(1, np.int64), np.zeros(len(Taking), np.int64)
        self._notes = 0

    def begin(self) -> None:
        """Note that a ticket is being taken."""
        if self._notes and self._notes % TAKINGS == 0:
            self._make_room()
        self._put(self._word, 0, 2 * self._notes + 1)

    def end(self, ticket: int | None, size: tuple[int, int]) -> None:
        """Note the ticket that has been taken, if there was one, and its numbers of batches and samples."""
        if ticket is not None:
            batches, samples = size
            values = ticket, self._entry[Taking.BATCHES] + batches, self._entry[Taking.SAMPLES] + samples
            self._put(self._entry, 1 + self._notes % TAKINGS * len(Taking), values)
            self._notes += 1
        self._put(self._word, 0, 2 * self._notes)

    def _make_room(self) -> None:
        """Before notes are overwritten, wait until others have noted what they had taken, or it was done for them."""
        taken, others, word = self._tickets.read(), self._others, np.zeros(1, np.int64)

        def takes(first: int) -> bool:
            self._window.get(word, self._rank, "takings", first)
            self._window.flush(self._rank)
            return bool(word[0] % 2)

        def noted() -> bool:
            nonlocal others
            others = [first for first in others if takes(first)]
            return not others

        self._backoff.until(noted)
        self._noted.raise_to(taken)

    def _put(self, values: np.ndarray, offset: int, numbers: int | Sequence[int]) -> None:
        values[:] = numbers
        self._window.put(values, self._rank, "takings", self._first + offset)
        self._window.fence(self._rank)


def note(workers: Sequence[int], memory: Any, rank: int, name: str, offset: int, amount: int, before: int) -> None:
    """Note the ticket that a worker takes by a message, in the `memory` of the coordinator; see `mpidl.rma.requests`.

    The worker is one of the ranks `workers`.
    """
    if (name, offset, amount) == ("control", Control.TICKETS, 1):
        row = memory.local("takings").reshape(len(workers), TAKINGS_ROW)[workers.index(rank)]
        row[1 + row[0] // 2 % TAKINGS * len(Taking)] = before
        row[0] += 2


def noted(row: Sequence[int]) -> list[int] | None:
    """Return the last tickets in a worker's notes, in order; None while it takes one."""
    word, *notes = row
    tickets = [notes[number % TAKINGS * len(Taking)] for number in range(max(0, word // 2 - TAKINGS), word // 2)]
    return None if word % 2 else tickets


class Returns:
    """A worker's view of what others have given back: rows of `protocol.GivenBack`, in order."""

    def __init__(self, window: RemoteMemory, rank: int, worker: int) -> None:
        self._window, self._rank, self._worker, self._read = window.to(rank), rank, worker, 0

    def new(self, count: int) -> list[list[int]]:
        """Return the rows below `count` that are new to this worker."""
        if count <= self._read:
            return []
        rows = np.empty((count - self._read, GIVEN_BACK_WIDTH), np.int64)
        self._window.get(rows, self._rank, "given_back", self._read * GIVEN_BACK_WIDTH)
        self._window.flush(self._rank)
        self._read = count
        found: list[list[int]] = rows.tolist()
        return found

    def claim(self, number: int) -> bool:
        """Take what row `number` stands for, unless another worker has; return whether this one has it."""
        claims = Counter(self._window, self._rank, "given_back", number * GIVEN_BACK_WIDTH + GivenBack.CLAIMS)
        return claims.fetch_add() == 0

    def show_taker(self, number: int) -> None:
        """Show that this worker has row `number`, once it has noted that."""
        place = number * GIVEN_BACK_WIDTH + GivenBack.TAKER
        self._window.put(np.array([1 + self._worker]), self._rank, "given_back", place)
        self._window.fence(self._rank)
