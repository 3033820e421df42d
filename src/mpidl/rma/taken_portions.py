"""What the processes of workers leave behind when they end, in the coordinator's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mpidl.errors import MpidlError
from mpidl.rma.shared_state import SharedState
from mpidl.transport.protocol import (
    GIVEN_BACK,
    GIVEN_BACK_WIDTH,
    NO_MORE,
    TAKINGS,
    TAKINGS_ROW,
    Control,
    GivenBack,
    State,
    Taking,
)  # fmt: skip


class TakenPortions:
    """What workers have taken and given back, as another process of their node reads and completes it."""

    def __init__(self, shared: SharedState) -> None:
        window, workers = shared.window.as_rank(shared.roles.coordinator), shared.workers
        self._window = shared.window
        self._processes, self._ranks = shared.processes, workers
        self._rows = window.local("takings").reshape(len(workers), TAKINGS_ROW)
        self._control, self._statuses = window.local("control"), window.local("workers")
        self._given_back = window.local("given_back").reshape(GIVEN_BACK, GIVEN_BACK_WIDTH)

    def is_alive(self, worker: int) -> bool:
        """Return whether the process that began as a worker still plays it."""
        return bool(self._processes[self._ranks[worker]] == self._ranks[worker])

    @property
    def stopped(self) -> bool:
        """Whether no more portions are handed out."""
        return bool(self._control[Control.TICKETS] >= NO_MORE)

    def entries(self, worker: int) -> list[list[int]]:
        """Return what a worker remembers of its last portions: numbers of `protocol.Taking`, in order."""
        row = self._rows[worker]
        notes, entries = int(row[0]) // 2, row[1:].reshape(TAKINGS, len(Taking))
        order = range(max(0, notes - TAKINGS), notes)
        return [entries[number % TAKINGS].tolist() for number in order]

    def forgets(self, worker: int) -> bool:
        """Return whether a worker has taken more portions than are remembered."""
        return bool(self._rows[worker, 0] // 2 > TAKINGS)

    def settle(self, worker: int, size: Callable[[int], tuple[int, int]]) -> bool:
        """Complete the notes of a worker whose process has ended; False, to be called again, while others note theirs.

        Where it was taking a ticket, that is one that no worker has noted. One process at a time may call it.
        """
        for ticket, _, _ in self.entries(worker):
            if ticket < 0:
                self._show_taker(worker, ticket)
        word = self._rows[worker, :1]
        if word[0] % 2 == 0:
            return True
        control, workers = self._control, range(len(self._rows))
        # What others take from now on is not looked for.
        taken, rows = int(control[Control.TICKETS]), self._given_back[: control[Control.GIVEN_BACK]]
        claimed = np.flatnonzero((rows[:, GivenBack.CLAIMS] > 0) & (rows[:, GivenBack.TAKER] == 0)).tolist()
        self._window.sync()
        taking = [other for other in workers if self._rows[other, 0] % 2]
        if any(self.is_alive(other) for other in taking):
            return False
        known = {ticket for other in workers for ticket, _, _ in self.entries(other)}
        self._window.sync()
        since = int(control[Control.NOTED])
        # Once no more are handed out, the counter doesn't tell how many have been.
        end = max([since, *(ticket + 1 for ticket in known if ticket < NO_MORE)]) + len(taking)
        lacking = [*(-1 - number for number in claimed), *range(since, min(taken, end))]
        for ticket in [ticket for ticket in lacking if ticket not in known][:1]:
            self.note(worker, ticket, size)
        word -= word % 2
        self._window.sync()
        return True

    def note(self, worker: int, ticket: int, size: Callable[[int], tuple[int, int]]) -> None:
        """Note a ticket of a worker whose process has ended."""
        row = self._rows[worker]
        entries, (batches, samples) = self.entries(worker), size(ticket)
        _, before, of_these = entries[-1] if entries else (0, 0, 0)
        notes = int(row[0]) // 2
        row[1:].reshape(TAKINGS, len(Taking))[notes % TAKINGS] = ticket, before + batches, of_these + samples
        self._window.sync()
        row[0] = 2 * (notes + 1)
        if ticket < 0:
            self._show_taker(worker, ticket)

    def _show_taker(self, worker: int, ticket: int) -> None:
        self._given_back[-1 - ticket, [GivenBack.CLAIMS, GivenBack.TAKER]] = 1, 1 + worker

    def claimed(self, worker: int) -> list[int]:
        """Return the tickets, which are negative, of all that a worker has taken of what has been given back."""
        rows = self._given_back[: self._control[Control.GIVEN_BACK]]
        return [-1 - number for number in np.flatnonzero(rows[:, GivenBack.TAKER] == 1 + worker).tolist()]

    def part(self, ticket: int) -> tuple[int, int]:
        """Return what a ticket, which is negative, stands for: a portion and its first batch."""
        row = self._given_back[-1 - ticket]
        return int(row[GivenBack.PORTION]), int(row[GivenBack.FIRST])

    @property
    def others_train(self) -> bool:
        """Whether a worker trains whose process is alive, or may have taken a ticket that isn't noted."""
        training = np.flatnonzero((self._statuses["state"] < State.TRAINED) | (self._rows[:, 0] % 2 > 0)).tolist()
        return any(self.is_alive(worker) or self._rows[worker, 0] % 2 for worker in training)

    def give_back(self, worker: int, parts: Sequence[tuple[int, int]], marked: int) -> None:
        """Hand out portions again, from a batch on, that a worker had taken; it had marked the order `marked`.

        One process at a time may call it. What one has given back for this worker before, and the worker hasn't taken
        since, is left out. Raise MpidlError if there is no room.
        """
        count = int(self._control[Control.GIVEN_BACK])
        rows = self._given_back[:count]
        before = rows[(rows[:, GivenBack.GIVER] == worker) & (rows[:, GivenBack.TAKER] != 1 + worker)]
        known = set(map(tuple, before[:, [GivenBack.PORTION, GivenBack.FIRST]].tolist()))
        parts = [part for part in parts if part not in known]
        if count + len(parts) > GIVEN_BACK:
            raise MpidlError(f"more than {GIVEN_BACK} parts of portions to hand out again, expected fewer")
        for number, (portion, first) in enumerate(parts, count):
            self._given_back[number] = portion, first, worker, marked, 0, 0
        self._window.sync()
        self._control[Control.GIVEN_BACK] = count + len(parts)
        self._window.sync()

    def given_back(self, worker: int) -> list[tuple[int, int]]:
        """Return all that has been given back for a worker, portions with their first batches."""
        rows = self._given_back[: self._control[Control.GIVEN_BACK]]
        own = rows[rows[:, GivenBack.GIVER] == worker]
        return [(portion, first) for portion, first in own[:, [GivenBack.PORTION, GivenBack.FIRST]].tolist()]

    def unclaimed(self, worker: int) -> list[int]:
        """Return the rows of what a worker has given back and no other has taken."""
        rows = self._given_back[: self._control[Control.GIVEN_BACK]]
        found: list[int] = np.flatnonzero(
            (rows[:, GivenBack.GIVER] == worker) & (rows[:, GivenBack.CLAIMS] == 0)
        ).tolist()
        return found
