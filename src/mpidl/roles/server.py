"""The role of a server: apply what arrives in its mailboxes to its shard, and write checkpoints between."""

from __future__ import annotations

import time
from pathlib import Path

from mpidl.engines.mpi.sandblaster.server import Operating
from mpidl.report.recorder import record_event
from mpidl.rma.mailboxes import END, GROUP, Inbox, Message
from mpidl.rma.status import State
from mpidl.rma.transport import CLOCK, ORDER_LEAVE, ORDER_NUMBER, ORDER_STEP, RECEIVED, Fabric
from mpidl.roles.supervision import dropped
from mpidl.shards.policies import Push
from mpidl.shards.shard import Shard
from mpidl.storage.interleaving import ServerRecord
from mpidl.storage.saving import Saving

#: Seconds between two posts of a server's figures to the board.
POST_EVERY = 0.1


class Server:
    """Serves one shard until the coordinator says leave.

    Parameters
    ----------
    fabric : Fabric
    number : int
        This server's number.
    shard : Shard
        Its parameters lie in the window.
    directory : Path
        The run's.
    deterministic : bool
        Apply pushes in rounds: chunk by chunk, one push of every worker that still trains, in the workers' order.

    Attributes
    ----------
    record : ServerRecord or None
        Where arrivals are noted.
    """

    def __init__(self, fabric: Fabric, number: int, shard: Shard, directory: Path, deterministic: bool) -> None:
        self.number, self.shard, self._directory, self._rank = number, shard, directory, fabric.comm.rank
        shard.on_drop = self._log_drop
        self.record: ServerRecord | None = None
        self._inbox: Inbox = fabric.inbox(number)
        self._clock = fabric.window.local("clock")
        self._clock[CLOCK] = shard.clock
        self._orders = fabric.window.local("orders")
        self._quiescing = False
        self._signals = fabric.signals()
        self._interrupted = False
        self._backoff = fabric.backoff()
        self._row = fabric.row("servers", number)
        self._saving = Saving(shard, number, self._row, directory / "checkpoints")
        self._operating = Operating(fabric, shard, self._saving) if fabric.units else None
        self._workers, self._doorbells = fabric.workers, fabric.doorbells
        self._posted = 0.0
        # Where ranks share cores, the wall's clock also counts the others' work.
        self._crowded = fabric.crowded
        self._timer = time.thread_time if fabric.crowded else time.perf_counter
        self._training = set(range(len(fabric.workers)))
        self._round = self._lockstep_round if deterministic else self._free_round
        self._turn = 0

    def interrupt(self) -> None:
        """Tell the coordinator that a signal asked to stop."""
        self._interrupted = True

    def serve(self) -> None:
        """Apply pushes and obey orders until told to leave."""
        self._row.figures["state"] = State.WORKING
        started = self._timer()
        while not self._orders[ORDER_LEAVE]:
            now = time.perf_counter()
            self._checkpoint()
            worked = self._round()
            if self._operating is not None:
                worked |= self._operating.obey()
            if self._interrupted:
                self._interrupted = False
                self._signals.fetch_add()
            if worked:
                self._row.figures["busy_seconds"] += self._timer() - started
                started = self._timer()
                self._backoff.reset()
                self._backoff.progress()
            elif self._saving.active:
                self._backoff.progress()
                started = self._timer()
            # To fall asleep and to be woken are part of the work that a core shared with others does.
            elif self._backoff.pause() or not self._crowded:
                started = self._timer()
            if now - self._posted > POST_EVERY:
                self._posted = now
                self._saving.post()

    def _free_round(self) -> bool:
        """Apply a group of chunks of each worker that has any; return whether there was one."""
        ready = self._inbox.waiting()
        self._turn += 1
        worked = False
        for i in range(len(ready)):
            # Whoever comes first in one round comes last in another.
            worker = ready[(i + self._turn) % len(ready)]
            if self._quiescing and not self.shard.is_open(worker):
                continue
            for message in self._inbox.drain(worker, GROUP):
                self._apply(message)
            worked = True
        return worked

    def _lockstep_round(self) -> bool:
        """Apply the next chunk of each worker that still trains, if all of them have one; return whether they had."""
        workers = sorted(self._training)
        if not workers or not all(self._inbox.pending(worker) for worker in workers):
            return False
        if self._quiescing and self.shard.at_rest:
            return False
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
            shard.remove_worker(message.worker)
            if record is not None:
                record.left(message.worker)
            self._training.discard(message.worker)
            if not self._training:
                shard.apply_rest()
                self._saving.post(State.TRAINED)
        elif self._operating is not None:
            self._operating.accrue(message)
        else:
            shard.receive_chunk(message.worker, message.chunk, message.fetched, message.values, message.portions)
            if record is not None:
                record.received(message.worker)
        self._clock[RECEIVED] = shard.received
        if shard.clock != before:
            self._clock[CLOCK] = shard.clock
            if shard.policy.awaited:
                for rank in self._workers:
                    self._doorbells.ring(rank)

    def _log_drop(self, push: Push) -> None:
        log = dropped(push)
        record_event(self._directory, log.kind, self._rank, f"server {self.number}", **log.details)

    def _checkpoint(self) -> None:
        """Take up the coordinator's order to save, and carry a piece of it out."""
        order = int(self._orders[ORDER_NUMBER])
        if not self._saving.active and order != self._saving.obeyed:
            self._quiescing = not self.shard.at_rest
            if self._quiescing:
                return
            self._saving.obey(order, int(self._orders[ORDER_STEP]))
        self._saving.advance()
