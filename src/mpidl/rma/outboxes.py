"""A worker's ends of all its mailboxes: see `mpidl.rma.mailboxes`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mpidl.launch.fault_points import fault_point
from mpidl.rma.doorbells import Doorbells
from mpidl.rma.mailboxes import CHUNK, FIRST, LAST, MARKED, PUSH
from mpidl.rma.outbox import Outbox
from mpidl.transport.protocol import END, MARK


class Remains(NamedTuple):
    """How far another process has come with a worker's pushes.

    Attributes
    ----------
    pushed : int
        Number of the last minibatch that it has pushed, if only in part; -1 before the first.
    push : int
        Ordinal of that push, from 0; -1 before the first.
    torn : (int, int) or None
        The first and the last minibatch of a push that some of the shards have not got, or not the whole of it.
    marked : int
        Ordinal of the last order that it has marked on all shards.
    ended : bool
        Whether it has announced the end of the pushes to all of them.
    """

    pushed: int
    push: int
    torn: tuple[int, int] | None
    marked: int
    ended: bool


class Outboxes:
    """A worker's ends of the mailboxes of all its shards, whose servers it contacts side by side.

    `parts` has the place of each shard in the worker's vector.
    """

    def __init__(self, outboxes: Sequence[Outbox], parts: Sequence[slice], doorbells: Doorbells) -> None:
        self._doorbells, self._parts = doorbells, dict(zip(outboxes, parts, strict=True))
        self._all, self._unmarked = list(outboxes), list[Outbox]()
        # Those that lack a push which another process has begun.
        self._behind = list[Outbox]()

    def __getitem__(self, number: int) -> Outbox:
        """Return the end of the mailbox of the worker's shard of that number, from 0."""
        return self._all[number]

    def resume(self) -> Remains:
        """Go on where another process has ended. The rest of a torn push follows `begin_rest`."""
        headers = [header for outbox in self._all if (header := outbox.resume()) is not None]
        if not headers:
            return Remains(-1, -1, None, 0, False)
        newest = max(headers, key=lambda header: (header[PUSH], header[CHUNK] >= 0))
        begun = max(outbox.pushes + (not outbox.delivered) for outbox in self._all)
        self._behind = [outbox for outbox in self._all if outbox.delivered and outbox.pushes < begun]
        first, last = int(newest[FIRST]), int(newest[LAST])
        torn = bool(self._behind) or not all(outbox.delivered for outbox in self._all)
        marked = min(int(header[MARKED]) for header in headers) if len(headers) == len(self._all) else 0
        return Remains(
            last, int(newest[PUSH]), (first, last) if torn else None, marked, all(outbox.ended for outbox in self._all)
        )

    def begin_rest(self, fetched: Sequence[int], batches: tuple[int, int]) -> None:
        """Begin a torn push on the shards that have got nothing of it, to `send` it then; see `begin`."""
        for outbox, clock in zip(self._all, fetched, strict=True):
            if outbox in self._behind:
                outbox.begin(clock, batches)

    @property
    def bytes(self) -> int:
        """Bytes of values delivered."""
        return sum(outbox.bytes for outbox in self._all)

    def begin(self, fetched: Sequence[int], batches: tuple[int, int] = (-1, -1), zero_copy: bool = False) -> None:
        """Begin a push, to `send` until that returns True; see `Outbox.begin`. `fetched` has each shard's clock."""
        for outbox, clock in zip(self._all, fetched, strict=True):
            outbox.begin(clock, batches, zero_copy)

    def send(self, vector: Any, start: int = 0) -> bool:
        """Deliver the chunks of a vector that don't begin before `start`, as far as there are free slots for them.

        Return whether the whole push is delivered.
        """
        while True:
            ready = [(outbox, part) for outbox, part in self._parts.items() if outbox.chunks_from(start - part.start)]
            for outbox, _ in ready:
                outbox.has_room()
            written = [outbox for outbox, part in ready if outbox.write(vector[..., part], start - part.start)]
            if not written:
                return all(outbox.delivered for outbox in self._all)
            self._publish(written)

    def end(self) -> bool:
        """Announce that no push follows; False, to be called again, if a shard has no free slot yet."""
        return not self._tell([outbox for outbox in self._all if not outbox.ended], END)

    def mark(self, order: int) -> bool:
        """Mark an order behind the pushes sent so far; False, to be called again, if a shard has no free slot yet."""
        self._unmarked = self._tell(self._unmarked or self._all, MARK, order)
        return not self._unmarked

    def send_side_data(self, messages: Sequence[deque[tuple[int, np.ndarray]]]) -> bool:
        """Send what travels between two pushes, as far as there is room: chunk numbers and bytes, for each shard.

        What is sent is removed. Return whether all of it is.
        """
        waiting = [(outbox, own) for outbox, own in zip(self._all, messages, strict=True) if own]
        while waiting:
            written = [each for each in waiting if each[0].write_between(each[1][0][0], payload=each[1][0][1])]
            self._publish([outbox for outbox, _ in written])
            for _, own in written:
                own.popleft()
            waiting = [each for each in written if each[1]]
        return not any(messages)

    def _tell(self, outboxes: Sequence[Outbox], chunk: int, order: int = 0) -> list[Outbox]:
        """Publish a message where there is room for one; return the outboxes that have none."""
        written = [outbox for outbox in outboxes if outbox.write_between(chunk, order)]
        self._publish(written)
        return [outbox for outbox in outboxes if outbox not in written]

    def applied(self) -> bool:
        """Return whether the servers have applied everything that was sent."""
        # All of them are asked before the first one answers.
        applied = [outbox.has_applied() for outbox in self._all]
        return all(applied)

    def start_asking(self) -> None:
        """Start reading the servers' counters; the caller flushes."""
        for outbox in self._all:
            outbox.ask()

    def _publish(self, written: Sequence[Outbox]) -> None:
        """Show the servers their new messages, once these have arrived."""
        for outbox in written:
            outbox.window.fence(outbox.server)
        fault_point("data-written")
        for outbox in written:
            outbox.publish()
            fault_point("counter-written")
        for outbox in written:
            outbox.window.fence(outbox.server)
            self._doorbells.ring(outbox.server)
