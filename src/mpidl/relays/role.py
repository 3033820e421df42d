"""The role of a relay: push the sum of a node's pushes, and fetch for all of its workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpidl.parameters.ranges import Range
from mpidl.relays.link import RelayLink
from mpidl.relays.push_aggregator import PushAggregator
from mpidl.relays.residuals import EARLY, LATE, RelayResiduals
from mpidl.relays.side_channel import Merging, RelayedSideData
from mpidl.rma.transport import Transport
from mpidl.roles.role import Role
from mpidl.transport.protocol import END, Phase, PushMessage, ShardClock, State
from mpidl.transport.status import WorkerStatus
from mpidl.wire import Differences

#: Seconds between two posts of the status of a relay and its workers: during training and afterwards. They are more in
#: jobs with many ranks.
POST_EVERY, POST_LAST_EVERY = 0.1, 5e-3


class RelayRole(Role):
    """Exchanges with the servers for the workers of its node until they stop pushing.

    To its workers it is a server with all shards. In an exchange it pushes the sum of their pushes, waits until the
    servers have applied it, fetches the parameters and shows them to the workers; then it acknowledges their pushes.
    Pushes that arrive during an exchange go into the next one. The ranks of a cut replica push one whole vector
    together, and mark and end together.

    To the servers it is two workers, of which the second one pushes only while a checkpoint is cut. When the first
    worker of the node marks an order, the relay marks it in its second ring, which takes the pushes of workers that
    have marked. When all have marked, it marks the order in the first ring, too. So a push is in the checkpoint if and
    only if it came before its worker's mark, and no worker waits for another's mark.

    To the coordinator it is the only rank of the node that receives orders. It posts its workers' status with its own.

    `parameters`, of shape (size,), are those of the last fetch, at first the initial ones; `clocks`, of shape
    (shards,), are the shards' initial clocks. `copies`, if fetches are encoded, are parts of the parameters. `merging`
    is for what workers exchange through the side channel, if they do.
    """

    def __init__(
        self, number: int, parameters: np.ndarray, clocks: np.ndarray, residuals: RelayResiduals,
        copies: Sequence[Differences] = (), statistics: Sequence[Range] = (), merging: Merging | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._number, self.parameters, self._statistics = number, parameters, statistics
        self.residuals, self._copies, self._merging = residuals, copies, merging
        self._clocks = np.zeros((len(clocks), len(ShardClock)), np.int64)
        self._clocks[:, ShardClock.CLOCK] = clocks
        self._order, self._cutting, self._ended = 0, False, False
        self._posted = 0.0
        self.status: WorkerStatus = WorkerStatus()

    def bind(self, transport: Transport) -> None:
        """Relay between the ranks of a transport."""
        self._link = link = RelayLink(transport, self._number, self.residuals.feedback, self._copies)
        self._backoff, self._post_every = transport.backoff(), link.reports.interval(POST_EVERY)
        self._aggregator = PushAggregator(
            link.inboxes, link.shards, link.chunks, self.parameters.dtype, link.replicas, time.perf_counter,
            self._statistics,
        )  # fmt: skip
        self._side = RelayedSideData(link, self._aggregator.requests, self._merging)
        link.show(self.parameters, self._clocks)
        link.reports.post(self.status.row)

    def run(self) -> None:
        """Exchange until all workers have stopped pushing, and stay until the coordinator orders the exit."""
        self.status.figures["state"] = State.WORKING
        self._until(self._advance, worked=self._take_messages)
        self.status.figures["state"] = State.TRAINED
        self._post_every = self._link.reports.interval(POST_LAST_EVERY)
        # Evaluations may ask for something, too.
        self._until(self._follow_orders)

    def _follow_orders(self) -> bool:
        """Save the last checkpoint if that is ordered; return whether the exit is."""
        order = self._link.orders.read()
        if order.phase != Phase.EXIT:
            if order.number > self.residuals.order:
                self.residuals.save(order.number, self._link.reports)
            self.residuals.report(self._link.reports)
        return order.phase == Phase.EXIT

    def _until(self, ready: Callable[[], Any], worked: Callable[[], bool] = lambda: False) -> None:
        """Take pushes and requests until `ready()`, and call `worked`, which returns whether it did anything."""
        while not ready():
            self.report_interruption(self._link.reports)
            if time.perf_counter() - self._posted > self._post_every:
                self._post()
            if self._aggregator.take() | self._side.forward() | worked():
                self._backoff.reset()
                self._backoff.progress()
            else:
                self._backoff.pause()

    def _advance(self) -> bool:
        """Exchange if it is time; return whether all workers have ended."""
        aggregator = self._aggregator
        self.residuals.report(self._link.reports)
        if not aggregator.empty:
            # A checkpoint waits for the workers that have not marked it, and late pushes wait for early ones.
            aggregator.closing = aggregator.closing or self._cutting or not aggregator.worth_waiting
            if aggregator.closing and aggregator.whole:
                self._exchange()
        return self._ended

    def _exchange(self) -> None:
        aggregator, link, figures = self._aggregator, self._link, self.status.figures
        started, gathered = time.perf_counter(), aggregator.swap()
        ring = link.rings[LATE if gathered.late else EARLY]
        before = ring.bytes
        self._send_side_data(LATE if gathered.late else EARLY, gathered.side_data)
        with self.status.push:
            ring.begin(gathered.fetched, gathered.batches)
            self._until(lambda: ring.send(gathered.vector))
        with self.status.wait:
            self._until(ring.applied)
        figures["pushes"] += 1
        figures["bytes_pushed"] += ring.bytes - before
        with self.status.fetch:
            link.start_fetch(self.parameters, self._clocks)
            self._until(lambda: link.finish_fetch(self._clocks))
            self.status.fetch.saw(self._clocks)
        figures["fetches"] += 1
        # Workers that see a cut read its order, which this relay may receive later than the servers.
        self._until(lambda: link.orders.read().number >= self._clocks[:, ShardClock.CUT].max())
        link.show(self.parameters, self._clocks)
        aggregator.show_applied(gathered, time.perf_counter() - started)

    def _send_side_data(self, number: int, gathered: Sequence[list[np.ndarray]] = ()) -> None:
        """Send in a ring the side data of pushes for each shard, and what workers that have ended have left."""
        ring, messages = self._link.rings[number], self._side.messages(number, gathered)
        self.status.figures["bytes_pushed"] += sum(message.size for own in messages for _, message in own)
        with self.status.push:
            self._until(lambda: ring.send_side_data(messages))

    def _take_messages(self) -> bool:
        """Handle the marks and ends of workers; return whether there were any."""
        found = False
        while (message := self._aggregator.next_message()) is not None:
            found = True
            self._take_message(message)
        aggregator = self._aggregator
        if self._cutting and aggregator.active <= aggregator.marked and (aggregator.empty or aggregator.late):
            self._mark(EARLY)
            self.residuals.save(self._order, self._link.reports)
            self.residuals.join()
            self._cutting = aggregator.late = False
            aggregator.marked.clear()
        if not aggregator.active and aggregator.empty and not self._ended:
            self._post()
            for number, ring in enumerate(self._link.rings):
                self._send_side_data(number)
                self._until(ring.end)
            self._ended = True
        return found

    def _mark(self, number: int) -> None:
        self._send_side_data(number)
        self._until(lambda: self._link.rings[number].mark(self._order))

    def _take_message(self, message: PushMessage) -> None:
        aggregator, worker = self._aggregator, message.worker
        if message.chunk == END:
            self._side.keep(LATE if worker in aggregator.marked else EARLY, aggregator.rest(worker))
            aggregator.active.discard(worker)
            aggregator.window.leaves(worker)
        elif message.batches[0] > self._order:
            # The sum so far is before this order. An earlier order that is incomplete is given up.
            self._order, self._cutting, aggregator.late = message.batches[0], True, False
            aggregator.marked.clear()
            aggregator.marked.add(worker)
            self.residuals.join()
            self._mark(LATE)
        elif message.batches[0] == self._order:
            aggregator.marked.add(worker)

    def _post(self) -> None:
        self._posted = time.perf_counter()
        self.status.figures["bytes_fetched"] = self._link.bytes_fetched + self._side.bytes_fetched
        self._link.reports.post(self.status.row)
