"""A worker's connection to the servers: the steps of every exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpidl.device import from_host
from mpidl.engines import monotonic
from mpidl.engines.mpi.group import Waiting
from mpidl.engines.mpi.request_handler import SideChannel
from mpidl.engines.progress import UnpushedBatches
from mpidl.parameters.ranges import Range
from mpidl.rma.worker import WorkerLink
from mpidl.shards.shard import ABSENT, outside
from mpidl.transport.protocol import ShardClock
from mpidl.transport.status import WorkerStatus
from mpidl.wire import Differences


class Connection:
    """Pushes and fetches through a link, with their counts and times in the worker's status.

    `shards` make up the worker's slice of the vector, counted from its beginning; `copies` are those of the worker,
    where fetches are encoded. `arriving` is called with the ordinal of an order that others may have marked, before
    fetched values are used. `fetched`, of shape (shards, len(ShardClock)), has the clocks at the last fetch.
    `parameters` is the vector of the last `Fetch`, and of the next one. `channel` is what is exchanged
    beside vectors.
    """

    def __init__(
        self,
        shards: Sequence[Range],
        status: WorkerStatus,
        unpushed: UnpushedBatches,
        copies: Sequence[Differences],
        arriving: Callable[[int], None],
        channel: SideChannel,
    ) -> None:
        self._shards, self._parts = shards, [slice(*shard) for shard in shards]
        self._status, self._unpushed, self._copies, self._arriving = status, unpushed, copies, arriving
        self._channel = channel
        self.fetched = self.clocks()
        self.parameters: Any = None
        # The shards that are being fetched behind the last push.
        self._behind: Sequence[int] = ()
        # The vector whose push has begun, and the bytes that had been pushed before.
        self._begun: Any = None
        self._pushed_before = 0

    def bind(self, link: WorkerLink) -> None:
        """Reach the servers by `link` from now on."""
        self.link = link
        self._waiting = Waiting(link, self._status)
        self._channel.bind(link, self._status)
        self._behind, self._begun = (), None

    def clocks(self) -> np.ndarray:
        """Return memory for the clocks of all shards at a fetch."""
        return np.full((len(self._parts), len(ShardClock)), -1, np.int64)

    def outside(self, parts: Sequence[Range]) -> list[int]:
        """Return the numbers of the shards outside of some parts of the vector; none if there are no parts."""
        return outside(parts, self._shards)

    def wait(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready()`."""
        self._waiting.until(ready)

    # Fetches.

    def start_fetch(self, parameters: Any, clocks: np.ndarray, without: Sequence[int] = ()) -> None:
        """Start fetching all shards into a vector, except some."""
        with self._status.fetch:
            # A clock read before the parameters never makes them look fresher than they are.
            self.link.fetches.start(parameters, clocks, without)

    def finish_fetch(self, parameters: Any, clocks: np.ndarray, without: Sequence[int] = ()) -> None:
        """Let a fetch that was started arrive; its clocks are those of the last fetch from now on."""
        figures, before = self._status.figures, self.link.fetches.bytes
        if self.link.fetches.encoded:
            self.wait(self.link.fetches.take_differences)
        with self._status.fetch:
            self.link.fetches.finish()
            if self.link.direct:
                figures["bytes_fetched"] += self.link.fetches.bytes - before
            for number, part in enumerate(self._parts):
                if number in self.link.fetches.encoded:
                    from_host(self._copies[number].values, parameters[part])
                elif self.link.direct and number not in without:
                    figures["bytes_fetched"] += parameters[part].nbytes
            self._status.fetch.saw(clocks)
        self._arriving(max(clocks[:, ShardClock.CUT].tolist(), default=0))
        self.fetched[:] = clocks

    def start_behind_push(self, parameters: Any, clocks: np.ndarray) -> Sequence[int]:
        """Start fetching into a vector behind the last push; return the shards whose servers answer such a fetch."""
        with self._status.fetch:
            self._behind = self.link.fetches.follow(parameters, clocks)
        return self._behind

    def finish_behind_push(self) -> Sequence[int]:
        """Let the shards that are being fetched behind the last push arrive, and return them."""
        behind, self._behind = self._behind, ()
        if behind:
            with self._status.fetch:
                self.link.fetches.finish_following()
        return behind

    def count_behind_push(self, parameters: Any, behind: Sequence[int]) -> None:
        """Count the bytes of shards that were fetched behind a push into a vector."""
        parts = (self._parts[number] for number in behind if number not in self.link.fetches.encoded)
        self._status.figures["bytes_behind"] += sum(parameters[part].nbytes for part in parts)

    # Pushes.

    def begin_push(self, vector: Any, zero_copy: bool, parts: Sequence[Range] = ()) -> None:
        """Begin the push of a vector, unless it has begun; with `zero_copy` it stays as it is until the next fetch."""
        if self._begun is None:
            clocks = self.fetched[:, ShardClock.CLOCK].tolist()
            for number in self.outside(parts):
                clocks[number] = ABSENT
            self.begin(vector, clocks, self._unpushed.batches, zero_copy)
        assert self._begun is vector, "a part of another vector has been sent"

    def begin(self, vector: Any, clocks: Sequence[int], batches: tuple[int, int], zero_copy: bool = False) -> None:
        """Begin a push; its headers have a clock for each shard, and two numbers."""
        self._channel.push()
        self._begun, self._pushed_before = vector, self.link.pushes.bytes
        self.link.pushes.begin(clocks, batches, zero_copy)

    def send(self, vector: Any, start: int = 0) -> bool:
        """Send the chunks from element `start` on as far as there is room; return whether all of the push is sent."""
        with self._status.push:
            return self.link.pushes.send(vector, start)

    def deliver(self, vector: Any) -> None:
        """Send the rest of a push that has begun."""
        figures = self._status.figures
        self.wait(lambda: self.send(vector))
        self._begun = None
        figures["pushes"] += 1
        figures["bytes_pushed"] += self.link.pushes.bytes - self._pushed_before if self.link.direct else 0
        figures["last_push"] = monotonic.now()
