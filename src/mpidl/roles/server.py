"""The role of a server: apply what arrives in its mailboxes to its shard, and write checkpoints between."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from mpidl.engines.mpi.sandblaster.server import SandblasterServer
from mpidl.engines.mpi.waiting import timer
from mpidl.report.recorder import record_event
from mpidl.roles.instructions import dropped
from mpidl.shards.cut import Cut
from mpidl.shards.operations import PARAMETERS
from mpidl.shards.shard import Shard
from mpidl.shards.state import PushHeader
from mpidl.storage.files import scratch
from mpidl.storage.interleaving import ServerRecord
from mpidl.storage.writer import BackgroundTask, save_shard
from mpidl.transport.interface.transport import Transport
from mpidl.transport.protocol import END, MARK, Message, Order, Phase, Saved, State
from mpidl.transport.status import ShardStatus

#: Seconds between two posts of a server's status.
POST_EVERY = 0.1
#: Chunks of one worker that are applied before the next worker's turn.
GROUP = 8


class Server:
    """Serves one shard until the coordinator lets it exit. It has its own state; `bind` gives it the other ranks.

    Parameters
    ----------
    number : int
        This server's number.
    shard : Shard
        Its parameters move into the transport's memory when the server is bound.
    directory : Path
        The run's directory.
    workers : int
        Number of workers.
    deterministic : bool
        Apply pushes in rounds: chunk by chunk, one push of every worker that still trains, in the workers' order.
    coordinated : bool
        Whether a coordinator drives the algorithm.
    finite : bool
        Whether checkpoints must be finite; see `mpidl.storage.writer.save_shard`.

    Attributes
    ----------
    record : ServerRecord or None
        Where arrivals are noted.
    """

    def __init__(
        self,
        number: int,
        shard: Shard,
        directory: Path,
        *,
        workers: int,
        deterministic: bool = False,
        coordinated: bool = False,
        finite: bool = False,
    ) -> None:
        self.number, self.shard, self._directory, self._finite = number, shard, directory, finite
        self.record: ServerRecord | None = None
        shard.on_drop = self._log_drop
        self._cut, self._order = Cut(shard), 0
        self._writing = BackgroundTask()
        self._sandblaster = SandblasterServer(shard, lambda: self._order) if coordinated else None
        self._status = ShardStatus(shard)
        self._training = set(range(workers))
        self._round = self._lockstep_round if deterministic else self._free_round
        self._turn = 0
        self._unwritten = False
        self._posted = 0.0
        self._interrupted = False

    def bind(self, transport: Transport) -> None:
        """Serve the ranks of a transport from now on; the parameters move into its memory."""
        self._link, self._rank = transport.server(self.number), transport.rank
        self._inbox, self._backoff = self._link.inbox, self._link.backoff()
        self._timer, self._crowded = timer(transport.crowded), transport.crowded
        self.shard.bind({PARAMETERS: self._link.parameters})
        self._link.show_clock(self.shard.clock, self.shard.received)
        self._link.show_cut(self._order)
        if self._sandblaster is not None:
            self._sandblaster.bind(self._link)
        self._link.post(self._status.taken())

    def unbind(self) -> None:
        """Move the parameters out of the transport's memory, which is about to be freed."""
        self.shard.unbind()

    def interrupt(self) -> None:
        """Tell the coordinator that a signal asked to stop."""
        self._interrupted = True

    def serve(self) -> None:
        """Apply pushes and obey orders until the coordinator says to exit."""
        status = self._status.figures
        status["state"] = max(State.WORKING, status["state"])
        started = self._timer()
        while (order := self._link.order()).phase != Phase.EXIT:
            now = time.perf_counter()
            self._save(order)
            worked = self._round()
            if self._sandblaster is not None:
                worked |= self._sandblaster.obey()
            if self._interrupted:
                self._interrupted = False
                self._link.signal()
            if worked:
                status["busy_seconds"] += self._timer() - started
                started = self._timer()
                self._backoff.reset()
                self._backoff.progress()
            # To fall asleep and to be woken are part of the work that a core shared with others does.
            elif self._backoff.pause() or not self._crowded:
                started = self._timer()
            if now - self._posted > POST_EVERY:
                self._posted = now
                self._link.post(self._status.taken())

    def _free_round(self) -> bool:
        """Apply a group of chunks of each worker that has any; return whether there was one."""
        ready = self._inbox.waiting()
        self._turn += 1
        worked = False
        for i in range(len(ready)):
            # Whoever comes first in one round comes last in another.
            worker = ready[(i + self._turn) % len(ready)]
            for message in self._inbox.drain(worker, GROUP):
                self._apply(message)
            worked = True
        return worked

    def _lockstep_round(self) -> bool:
        """Apply the next chunk of each worker that still trains, if all of them have one; return whether they had."""
        workers = sorted(self._training)
        if not workers or not all(self._inbox.pending(worker) for worker in workers):
            return False
        # A mark is no part of a round: not every worker makes one.
        marked = [worker for worker in workers if self._inbox.head(worker).chunk == MARK]
        workers = marked or workers
        for worker in workers:
            self._apply(self._inbox.head(worker))
            self._inbox.release(worker)
        for worker in workers:
            self._inbox.acknowledge(worker)
        return True

    def _apply(self, message: Message) -> None:
        shard, record = self.shard, self.record
        before = shard.clock
        if message.chunk == END:
            self._remove_worker(message.worker)
        elif message.chunk == MARK:
            self._mark(message.worker, message.portions[0])
        elif self._sandblaster is not None:
            self._sandblaster.accrue(message)
        else:
            received = (message.worker, message.chunk, message.fetched, message.values, message.portions)
            shard.receive_chunk(*received)
            self._cut.receive_chunk(*received)
            if record is not None:
                record.received(message.worker)
        self._link.show_clock(shard.clock, shard.received)
        if shard.clock != before and shard.policy.awaited:
            self._link.wake_workers()

    def _remove_worker(self, worker: int) -> None:
        self._cut.mark(worker)
        self.shard.remove_worker(worker)
        if self.record is not None:
            self.record.left(worker)
        self._training.discard(worker)
        if not self._training:
            self.shard.apply_rest()
            self._status.figures["state"] = State.TRAINED
            self._link.post(self._status.taken(), wake=True)

    def _log_drop(self, push: PushHeader) -> None:
        log = dropped(push)
        record_event(self._directory, log.kind, self._rank, f"server {self.number}", **log.details)

    # Checkpoints.

    def _mark(self, worker: int, order: int) -> None:
        """Take no more pushes of a worker into the checkpoint of an order; the first mark begins that."""
        if order > self._order:
            self._begin_cut(order)
        if order == self._order:
            self._cut.mark(worker)

    def _begin_cut(self, order: int) -> None:
        # What is still being written of an earlier order is of no use any more.
        self._order, self._unwritten, self._writing = order, True, BackgroundTask()
        self._cut.begin(() if self._sandblaster is not None else self._training)
        if self._sandblaster is None:
            self._link.show_cut(order)

    def _save(self, order: Order) -> None:
        """Write the cut once it is complete, and report when it is on disk."""
        # Workers that push no more make no marks; a coordinator's iterations end before its orders.
        if order.number > self._order and (not self._training or self._sandblaster is not None):
            self._begin_cut(order.number)
        if self._unwritten and self._cut.complete:
            self._unwritten = False
            shard, directory = self._cut.copy, scratch(self._directory / "checkpoints", self._order)
            state = shard.on_host()
            self._writing.begin(partial(save_shard, directory, self.number, shard.range, state, self._finite))
        if self._writing.ended():
            self._link.report_saved(Saved(self._order, shards=[self.number]))
