"""A server's end of mailboxes in which gradients may travel in factors: see `mpidl.rma.mailboxes`."""

from __future__ import annotations

import numpy as np

from mpidl.rma.doorbells import Doorbells
from mpidl.rma.inboxes import Inbox
from mpidl.rma.mailboxes import ENCODED, names
from mpidl.rma.verbs import RemoteMemory
from mpidl.transport.mailbox_geometry import MailboxGeometry
from mpidl.transport.protocol import Message


class PackedInbox(Inbox):
    """An end that takes pieces of a push out of the ring as they come, and computes chunks from them.

    See `Inbox` for the parameters; the geometry has a packing.
    """

    def __init__(
        self, window: RemoteMemory, geometry: MailboxGeometry, ranks: list[int], doorbells: Doorbells, shard: int = 0
    ) -> None:
        super().__init__(window, geometry, ranks, doorbells, shard)
        assert geometry.packing is not None
        self._packing = geometry.packing
        self._applied = window.local(names(shard).applied)
        self._chunk_values = np.empty(geometry.chunk, geometry.dtype)
        # Of the push that each worker's ring begins with: the samples of its minibatch, if it is in factors, the pieces
        # that have been taken out, and the first of its headers.
        self._samples, self._here = [0] * geometry.workers, [0] * geometry.workers
        self._opened: list[Message | None] = [None] * geometry.workers
        self._arrived: dict[int, np.ndarray] = {}

    def waiting(self) -> list[int]:
        return [worker for worker in super().waiting() if self.pending(worker)]

    def pending(self, worker: int) -> int:
        """Return how many chunks of `worker` are waiting, or can be computed from what has arrived."""
        slots = super().pending(worker)
        if not slots or not (self._samples[worker] or self._open(worker)):
            return slots
        self._take_pieces(worker, slots)
        return self._packing.ready(self._samples[worker])[self._here[worker]] - self._released(worker)

    def _released(self, worker: int) -> int:
        """Return how many chunks of the push that is being applied have been released."""
        return self._last - self._expected[worker][1]

    def _open(self, worker: int) -> bool:
        """Return whether the ring begins with a push in factors; if so, it has begun."""
        slots = self._geometry.slots
        header = self._headers[worker][slots - 1 - self._taken[worker] % slots]
        self._samples[worker] = samples = int(header[ENCODED])
        if not samples:
            return False
        self._here[worker] = 0
        if worker not in self._arrived:
            self._arrived[worker] = np.empty(self._packing.nbytes, np.uint8)
        return True

    def _take_pieces(self, worker: int, slots: int) -> None:
        """Take out what has arrived of a push, and let the worker have its slots."""
        here, size, count = self._here[worker], self._packing.piece, self._geometry.slots
        first, chunks = self._taken[worker] - self._released(worker), self._geometry.chunks
        arrived = min(self._released(worker) + slots, chunks)
        if arrived == here:
            return
        memory, payloads = self._arrived[worker], self._payloads[True][worker]
        for number in range(here, arrived):
            slot = count - 1 - (first + number) % count
            message = self._message(worker, slot, (self._expected[worker][0], self._last - number))
            if not number:
                self._opened[worker] = message
            start = message.chunk * size
            memory[start : start + size] = payloads[slot]
        self._here[worker] = arrived
        self._show(worker)

    def head(self, worker: int) -> Message:
        if not (self.pending(worker) and self._samples[worker]):
            return super().head(worker)
        opened, chunk = self._opened[worker], self._expected[worker][1]
        assert opened is not None
        self._chunk[worker] = chunk
        values = self._chunk_values[: min(self._geometry.chunk, self._packing.size - chunk * self._geometry.chunk)]
        self._packing.unpack(chunk, self._samples[worker], self._arrived[worker], values)
        return opened._replace(chunk=chunk, values=values)

    def release(self, worker: int) -> None:
        super().release(worker)
        if not self._released(worker):
            self._samples[worker] = self._here[worker] = 0

    def _show(self, worker: int) -> None:
        taken = self._taken[worker]
        self._window.sync()
        self._applied[worker] = taken
        self._consumed[worker] = taken + max(0, self._here[worker] - self._released(worker))
        unread = int(self._published[worker]) - int(self._consumed[worker])
        if not self._released(worker) or 2 * unread < self._geometry.slots:
            self._doorbells.ring(self._ranks[worker])

    def acknowledge(self, worker: int) -> None:
        self._show(worker)
