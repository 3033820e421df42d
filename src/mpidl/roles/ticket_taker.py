"""How a worker takes portions: what others have given back, then new ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from mpidl.data.schedule import Schedule
from mpidl.engines.mpi.checkpoint_participant import CheckpointParticipant
from mpidl.rma.worker import WorkerLink
from mpidl.transport.protocol import NO_MORE, GivenBack


class TicketTaker:
    """Takes a worker's tickets. Those `in_turn`, if there are any, are its own in a deterministic run."""

    def __init__(
        self, schedule: Schedule, participant: CheckpointParticipant, in_turn: Iterator[int] | None = None
    ) -> None:
        self._schedule, self._participant, self._in_turn = schedule, participant, in_turn
        # Tickets for what has been given back and may not have been taken, with the orders that were marked before.
        self._offered: deque[tuple[int, int]] = deque()

    def bind(self, link: WorkerLink) -> None:
        """Reach the other ranks by `link` from now on."""
        self._link = link
        link.tickets.size = self._schedule.size

    def ask(self) -> bool:
        """Ask for a ticket ahead of time, as `Tickets.ask` does."""
        return self._in_turn is None and self._link.tickets.ask()

    def take(self) -> int:
        """Take a ticket for a portion: the next one or, in a deterministic run, the next of this worker's own."""
        tickets = self._link.tickets
        if self._in_turn is not None:
            return max(next(self._in_turn), tickets.taken())
        offered = self._take_offered(self._link.orders.given_back())
        if offered is not None:
            return offered
        ticket = tickets.take()
        if ticket < NO_MORE and self._schedule.assignment(ticket) is None:
            # Others may have given something back that this worker doesn't know of yet.
            self._link.orders.read()
            offered = self._take_offered(self._link.orders.given_back())
        return ticket if offered is None else offered

    def _take_offered(self, count: int) -> int | None:
        """Take what another worker has given back, if there is any left; `count` are known to have been given back."""
        for row in self._link.tickets.returns.new(count):
            ticket = self._schedule.give_back(row[GivenBack.PORTION], row[GivenBack.FIRST])
            self._offered.append((ticket, row[GivenBack.MARKED]))
        while self._offered and self._link.tickets.taken() < NO_MORE:
            ticket, marked = self._offered.popleft()
            # The worker that had it gave it back after this mark.
            self._participant.obey_cut(marked)
            if self._link.tickets.claim(ticket):
                return ticket
        return None
