"""One shard as its server serves it: what arrives in its mailboxes, and its part in checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from mpidl.launch.fault_points import fault_point
from mpidl.report.recorder import record_event
from mpidl.rma.server import ServerLink
from mpidl.rma.transport import Transport
from mpidl.roles.events import dropped, lost
from mpidl.shards.ledger import Ledger
from mpidl.shards.shard import Shard, Snapshot
from mpidl.shards.state import PushHeader
from mpidl.storage.writer import BackgroundTask
from mpidl.transport.protocol import END, MARK, REQUEST, SIDE_DATA, Order, PushMessage, SavedFiles, ShardCut, State
from mpidl.transport.status import ShardStatus

#: Chunks of one worker that are applied before the next worker's turn.
GROUP = 8


class ServedShard:
    """Applies what workers push to one shard, and writes it to checkpoints.

    `directory`, `scratch`, `workers`, `portion`, `deterministic` and `save` are those of `mpidl.roles.server.Server`.
    `accrue`, where a coordinator drives the algorithm, takes the shard's number and a chunk. `apply` carries out a
    message of a worker. `order` is the ordinal of the last order to save that was taken up, and `due` the time of the
    next call of `look`.
    """

    link: ServerLink

    def __init__(
        self,
        number: int,
        shard: Shard,
        server: int,
        directory: Path,
        scratch: Callable[[int], Path],
        *,
        workers: int,
        portion: Callable[[int], int],
        deterministic: bool,
        save: Callable[..., None],
        accrue: Callable[[int, PushMessage], None] | None = None,
    ) -> None:
        self.number, self.shard, self._server = number, shard, server
        self._directory, self._scratch = directory, scratch
        self._portion, self._save, self._accrue = portion, save, accrue
        self.due = -math.inf
        shard.on_drop = self._log_drop
        self._snapshot, self.order = Snapshot(shard), 0
        self._writing = BackgroundTask()
        self.status = ShardStatus(shard)
        self._training = set(range(workers))
        # Of each worker, the pushes that the shard has, and those in the checkpoint of the last order.
        self._pushed, self._cuts = dict.fromkeys(range(workers), (0, -1)), dict[int, ShardCut]()
        self._told = 0
        self.apply = self._apply
        self.round = self._lockstep_round if deterministic else self._free_round
        self._turn = 0
        self._unwritten = False
        self._seen: Order | None = None
        self._between: dict[int, Callable[[PushMessage], None]] = {
            END: lambda message: self._remove_worker(message.worker),
            MARK: lambda message: self._mark(message.worker, message.batches[0]),
            SIDE_DATA: self._receive_side_data,
            REQUEST: self._answer,
        }

    def serve(self, order: Order, now: float) -> bool:
        """Do what there is to do; return whether anything has changed."""
        if order is not self._seen or self._unwritten or self._writing.active:
            self._seen = order
            self.save(order)
        if (worked := self.round()) or now >= self.due:
            worked |= self.look(now)
        return self.link.answer_fetches() or worked

    def bind(self, transport: Transport) -> None:
        """Serve the ranks of a transport; the shard moves into its memory."""
        self._connect(transport)
        self.shard.bind(self.link.vectors)
        self._ledger.open()
        self.link.show_clock(self.shard.clock)
        self.link.show_cut(self.order)
        self.post()

    def adopt(self, transport: Transport) -> int:
        """Continue with the shard that another process has left in a transport's memory; give up its checkpoint.

        Return the number of chunks that are lost.
        """
        self._connect(transport)
        self.shard.adopt(self.link.vectors)
        for worker, (applied, push, chunk) in enumerate(self._ledger.resume()):
            self._inbox.begin_behind(worker, applied, push, chunk)
            if applied:
                self._pushed[worker] = -1, -1
            if chunk == END:
                self._training.discard(worker)
        self.order = self.link.cut
        self.link.reports.read(self.status.row)
        torn = self._ledger.torn()
        if torn is not None:
            self._lose(self._inbox.head(torn))
        self.link.show_clock(self.shard.clock)
        self.link.wake_workers()
        return int(torn is not None)

    def _connect(self, transport: Transport) -> None:
        self.link, self._rank = transport.server(self.number), transport.rank
        self._inbox, self._ledger = self.link.inbox, Ledger(self.shard, self.link.ledger)

    def unbind(self) -> None:
        """Move the shard out of the transport's memory, which is about to be freed."""
        self.shard.unbind()
        self._ledger.close()

    def post(self, wake: bool = False) -> None:
        """Post the shard's status."""
        self.status.figures["queue"] = len(self._inbox.waiting())
        self.link.reports.post(self.status.taken(), wake)

    def _free_round(self) -> bool:
        """Apply a group of chunks of each worker that has any; return whether there was one."""
        ready = self._inbox.waiting()
        self._turn += 1
        worked = False
        for i in range(len(ready)):
            # Rotate, so that no worker is always served first.
            worker = ready[(i + self._turn) % len(ready)]
            for message in self._inbox.drain(worker, GROUP):
                self.apply(message)
            worked = True
        return worked

    def _lockstep_round(self) -> bool:
        """Apply the next chunk of each worker that still trains, if all of them have one; return whether they had."""
        waiting = self._inbox.waiting()
        # What is between pushes doesn't belong to rounds, except a worker's end: not every worker has it.
        between = [worker for worker in waiting if self._inbox.head(worker).chunk < END]
        workers = between or sorted(self._training)
        if not workers or not set(workers) <= set(waiting):
            return False
        for worker in workers:
            self.apply(self._inbox.head(worker))
            self._inbox.release(worker)
        for worker in workers:
            self._inbox.acknowledge(worker)
        return True

    def _apply(self, message: PushMessage) -> None:
        before = self.shard.clock
        if message.chunk < 0:
            self._between[message.chunk](message)
        elif self._accrue is not None:
            # What is gathered for a coordinator can't be taken over, so its chunks are in no ledger.
            self._accrue(self.number, message)
            return
        else:
            fault_point("chunk-begun")
            received = (message.worker, message.chunk, message.fetched, message.values, message.batches)
            self._snapshot.receive_chunk(*received)
            self._ledger.begin(message.worker)
            fault_point("chunk-noted")
            if self.shard.receive_chunk(*received):
                self._pushed[message.worker] = message.push + 1, message.batches[1]
        self._ledger.end(message.worker, message.push, message.chunk)
        fault_point("chunk-applied")
        self._show_clock(before)

    def _receive_side_data(self, message: PushMessage) -> None:
        """Keep what the worker's next push changes beside the parameters."""
        assert self.shard.side_state is not None, "a worker has sent what this job doesn't keep"
        received = self.shard.side_state.unpack(message.values)
        self.shard.side_state.receive(message.worker, received)
        self._snapshot.receive_side_data(message.worker, received)

    def _answer(self, message: PushMessage) -> None:
        """Answer a worker from what is kept beside the parameters."""
        assert self.shard.side_state is not None
        assert self.link.answers is not None
        self.link.answers.write(message.worker, partial(self.shard.side_state.answer, message.values))

    def _lose(self, message: PushMessage) -> None:
        """Give up a chunk that another process was applying when it ended: it may have been applied in part."""
        worker, push, chunk, fetched, _, batches = message
        details = lost(worker, push, batches, map(self._portion, batches), self.number, chunk)
        record_event(self._directory, "lost", self._rank, f"server {self._server}", **details)
        self._ledger.forget(fetched)
        self.shard.receive_chunk(worker, chunk, fetched, None, batches)
        self._ledger.end(worker, push, chunk)
        self._inbox.release(worker)
        self._inbox.acknowledge(worker)

    def look(self, now: float) -> bool:
        """Let the policy act on the time, in seconds; return whether that has updated the shard."""
        before = self.shard.clock
        self.due = self.shard.pass_time(now)
        if self.shard.clock == before:
            return False
        self._show_clock(before)
        return True

    def _show_clock(self, before: int) -> None:
        """Show the workers the shard's clock, and wake them if they wait for another one than it was before."""
        self.link.show_clock(self.shard.clock)
        if self.shard.clock != before and self.shard.policy.awaited:
            self.link.wake_workers()

    def _remove_worker(self, worker: int) -> None:
        self._snapshot.end(worker)
        self.shard.remove_worker(worker)
        self._training.discard(worker)
        self._seen = None  # Once none is left, `save` begins snapshots itself.
        if not self._training:
            self.shard.apply_rest()
            self.status.figures["state"] = State.TRAINED
            self.post(wake=True)

    def _log_drop(self, push: PushHeader) -> None:
        log = dropped(push, self._portion)
        record_event(self._directory, log.kind, self._rank, f"server {self._server}", **log.details)

    # Checkpoints.

    def _mark(self, worker: int, order: int) -> None:
        """Take no more pushes of a worker into the checkpoint of an order; the first mark begins that."""
        self.shard.end_side_state(worker)
        if order > self.order:
            self._begin_snapshot(order)
            fault_point("mark-taken")
        if order == self.order:
            self._snapshot.end(worker)
            self._cuts.setdefault(worker, ShardCut(*self._pushed[worker], marked=True))

    def _write(self, copy: Shard, vectors: dict[str, np.ndarray], directory: Path, copied: int) -> None:
        """Write a copy's file, in a thread: gathering rows of tables may take seconds."""
        self._save(directory, self.number, copy.range, copy.saved(vectors), copied)

    def _begin_snapshot(self, order: int) -> None:
        if self._writing.active:
            self._snapshot = Snapshot(self.shard)  # A thread still reads the copy of the other.
        # A snapshot of an earlier order that is still being written is obsolete.
        self.order, self._unwritten, self._writing, self._cuts = order, True, BackgroundTask(), {}
        self._snapshot.begin(() if self._accrue is not None else self._training)
        if self._accrue is None:
            self.link.show_cut(order)

    def save(self, order: Order) -> None:
        """Write the snapshot once it is complete, and report when it is on disk.

        A worker that is in one batch for long makes no mark. The coordinator then has servers make all marks that are
        missing, each where it is (`Order.cut`), and report the pushes of each worker before its mark. The checkpoint is
        completed only if these are the same on all shards, none of them in part. Otherwise it is given up, so that it
        doesn't matter what the worker does meanwhile. What it pushes, and its own mark, come after this one and are in
        no checkpoint of this order. What it had taken and not pushed is handed out again by a run that is resumed (see
        `mpidl.storage.position.cut_off`), and its vectors are not kept, as at its death.
        """
        cut = order.cut == order.number > self._told and order.number >= self.order
        # Workers that have stopped pushing make no marks; a coordinator's iterations end before its orders.
        if order.number > self.order and (not self._training or self._accrue is not None or cut):
            self._begin_snapshot(order.number)
        if cut:
            self._cut()
        if self._unwritten and self._snapshot.complete:
            self._unwritten = False
            copy, own = self._snapshot.copy, (self._scratch(self.order), self._snapshot.clock)
            self._writing.begin(partial(self._write, copy, copy.on_host(), *own))
        if self._writing.ended():
            self.link.reports.saved(SavedFiles(self.order, shards=[self.number]))

    def _cut(self) -> None:
        """Make the marks that are missing, and report where all are."""
        self._told = self.order
        # Those that have ended make no marks.
        self._cuts = {worker: ShardCut(*pushed, marked=True) for worker, pushed in self._pushed.items()} | self._cuts
        for worker in self._snapshot.mark_all():
            self._cuts[worker] = ShardCut(
                *((-1, -1) if worker in self.shard.open else self._pushed[worker]), marked=False
            )
        self.link.reports.saved(SavedFiles(self.order, cuts=(self.number, self._cuts)))
