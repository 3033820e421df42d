"""A worker's part in checkpoints: marking orders and saving the replica's state."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from mpidl.algorithms.replica_state import ReplicaState
from mpidl.data.loader import Loader
from mpidl.engines.mpi.request_handler import Contribution, RequestHandler
from mpidl.parameters.ranges import Range
from mpidl.rma.worker import WorkerLink
from mpidl.storage.files import replica_file
from mpidl.storage.position import ReplicaPosition
from mpidl.storage.writer import BackgroundTask, save_shard, write_file
from mpidl.transport.protocol import Order, Phase, SavedFiles

#: Seconds between two looks for an order, if workers are few.
LOOK_EVERY = 0.02


class Stopped(Exception):
    """The last checkpoint has been marked, and the replica stops there."""


class CheckpointParticipant:
    """Obeys the coordinator's orders to save, at moments at which the replica's state is complete.

    `number` is the replica's, `clock` its clock. `in_turn` says whether replicas take portions in turn, as in a
    deterministic run, `tickets` of them before; `finite`, whether checkpoints must be finite (see
    `mpidl.storage.writer.save_shard`). `part` is this rank's part of the flat vector, by default all. `scratch` returns
    the directory in which the checkpoint of an order is written.
    """

    def __init__(
        self, number: int, handler: RequestHandler, state: ReplicaState, loader: Loader,
        scratch: Callable[[int], Path], in_turn: bool = False, tickets: int = 0, finite: bool = False,
        part: Range | None = None,
    ) -> None:  # fmt: skip
        self._lead, self._part = handler.lead, part
        self._number, self._handler, self._state, self._loader = number, handler, state, loader
        self._source = handler.checkpoint
        self._scratch, self._in_turn, self._tickets_before = scratch, in_turn, tickets
        self._finite = finite
        self.clock = 0
        self._marked = 0
        self._looked, self._told = -math.inf, Order(0, 0, Phase.TRAIN)
        self._recent: list[int] = []
        self._source.where, self._source.cut_seen = lambda: self.position, self.obey_cut
        self._writing, self._report = BackgroundTask(), SavedFiles(0)

    def bind(self, link: WorkerLink, wait: Callable[[Callable[[], bool]], None]) -> None:
        """Reach the other ranks by `link` from now on; `wait` waits until something is true."""
        self._link, self._wait, self._look_every = link, wait, link.reports.interval(LOOK_EVERY)

    def took(self, ticket: int) -> None:
        """Note a ticket taken by the lead, unless portions are taken in turn: their number then suffices."""
        if self._lead.leads and not self._in_turn and ticket >= 0:
            self._recent.append(ticket)

    @property
    def position(self) -> ReplicaPosition:
        """The position of the replica."""
        figures, loader = self._handler.status.figures, self._loader
        # The ticket that has been asked for is one of the recent ones.
        loader.wait_for_ticket()
        return self._handler.unpushed.position(
            loader, self._state, self._tickets_before, batches=int(figures["batches"]),
            samples=int(figures["samples"]), recent=[*loader.retaken, *self._recent], clock=self.clock,
            fetched=self._source.last_fetched(),
        )  # fmt: skip

    def look(self) -> None:
        """Obey an order if there is one, at intervals; the ranks of a replica obey with their lead.

        Raise `Stopped` after the last order.
        """
        if self._writing.ended():
            self._link.reports.saved(self._report)
        self.obey(self._lead.share(self._look))

    def obey(self, order: Sequence[int]) -> None:
        """Obey the coordinator's order, unless it is empty; see `look`."""
        if not order:
            return
        number, last, _, self._loader.schedule.reductions, _ = order
        if number > self._marked:
            self._obey(number, ended=False)
        if 0 < last <= self._marked:
            raise Stopped

    def _look(self) -> Sequence[int]:
        """Return an order if there is one to obey; ask the coordinator at intervals."""
        now = time.perf_counter()
        if now - self._looked >= self._look_every:
            self._looked = now
            self._take_in(self._link.orders.recent())
        elif not self._source.together:
            return ()
        return self._to_obey()

    def _look_now(self) -> Sequence[int]:
        """Return an order if there is one to obey; ask the coordinator and wait for its answer."""
        self._take_in(self._link.orders.read())
        return self._to_obey()

    def _take_in(self, told: Order) -> None:
        self._told = told
        if told.number <= self._marked:
            # Read together with the order: a ticket that is forgotten here has been taken before any later order.
            taken = self._link.orders.taken()
            self._recent = [ticket for ticket in self._recent if ticket >= taken]

    def _to_obey(self) -> Sequence[int]:
        order = self._source.order(self._told, self._marked)._replace(reductions=self._told.reductions)
        reduces = order.reductions != self._loader.schedule.reductions
        return order if order.number > self._marked or 0 < order.last <= self._marked or reduces else ()

    def obey_cut(self, cut: int) -> None:
        """Obey the order that others have marked, before their later pushes reach this replica."""
        if not self._source.together and self._lead.largest(cut) > self._marked:
            self.obey(self._lead.share(self._look_now))

    def obey_at_the_end(self, order: Order) -> None:
        """Obey an order after the last push."""
        if order.number > self._marked:
            self._obey(order.number, ended=True)
        if self._writing.ended():
            self._link.reports.saved(self._report)

    def _obey(self, order: int, ended: bool) -> None:
        if not ended:
            self._wait(lambda: self._source.mark(order))
        with self._handler.status.save:
            part = self._source.cut(order, self._number, self.position)
            if part is None:
                return
            self._marked = order
            self._save(order, part)

    def _save(self, order: int, part: Contribution) -> None:
        """Write and report this worker's part; a file that is still being written is abandoned."""
        lead = self._lead
        directory, name = self._scratch(order), replica_file(self._number, lead.partition)
        # One worker may contribute the state of all.
        vectors = {**self._state.vectors(), **self._source.vectors()} if part.replicas else {}
        files = [name] if vectors else []
        replicas, partition = (part.replicas, None) if lead.leads else ({}, (self._number, lead.partition))
        self._report = SavedFiles(order, list(part.shards), replicas, files, part.taken, partition)
        if not files and not part.shards:
            if part.replicas:
                self._link.reports.saved(self._report)
            return
        actions = [
            partial(save_shard, directory, number, *shard, self._finite) for number, shard in part.shards.items()
        ]
        if files:
            attributes = {} if self._part is None else {"start": self._part.start, "stop": self._part.stop}
            actions.append(partial(write_file, directory / name, attributes, vectors))
        self._writing = BackgroundTask()
        self._writing.begin(lambda: [action() for action in actions])
