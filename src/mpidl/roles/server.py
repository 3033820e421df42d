"""The role of a server: serve its shards, and obey the coordinator."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from mpidl.engines.mpi.sandblaster import SandblasterServer
from mpidl.rma.transport import Transport
from mpidl.roles.role import Role
from mpidl.roles.served import ServedShard
from mpidl.shards.shard import Shard
from mpidl.storage.deltas import ShardFiles
from mpidl.transport.protocol import Phase, State
from mpidl.transport.status import timer

#: Seconds between two posts of a server's status.
POST_EVERY = 0.1


class Server(Role):
    """Serves shards until the coordinator lets it exit.

    A server has one shard or, where replicas are cut, one for each partition that has a part of what it holds.

    `shards` has its shards by their numbers, at least one; they move into the transport's memory when it is
    bound. `directory` is the run's, and `scratch` returns the directory in which the checkpoint of an order is written.
    `workers` replicas push to each; `portion` returns the portion of a batch. A `deterministic` server applies
    pushes in rounds: chunk by chunk, one push of every worker that still trains, in the workers' order. `coordinated`
    says whether a coordinator drives the algorithm. `save` writes the file of a shard, as
    `mpidl.storage.deltas.ShardFiles.save`.
    """

    def __init__(
        self,
        number: int,
        shards: Mapping[int, Shard],
        directory: Path,
        scratch: Callable[[int], Path],
        *,
        workers: int,
        portion: Callable[[int], int] = int,
        deterministic: bool = False,
        coordinated: bool = False,
        save: Callable[..., None] | None = None,
    ) -> None:
        super().__init__()
        self._sandblaster = SandblasterServer(shards, self._obeyed) if coordinated else None
        accrue = None if self._sandblaster is None else self._sandblaster.accrue
        save = save or ShardFiles().save
        self.served = [
            ServedShard(
                own, shard, number, directory, scratch, workers=workers, portion=portion, deterministic=deterministic,
                save=save, accrue=accrue,
            )
            for own, shard in shards.items()
        ]  # fmt: skip
        self._posted = 0.0

    @property
    def shards(self) -> list[Shard]:
        return [each.shard for each in self.served]

    def bind(self, transport: Transport) -> None:
        """Serve the ranks of a transport from now on; the shards move into its memory."""
        for each in self.served:
            each.bind(transport)
        self._connect(transport)

    def adopt(self, transport: Transport) -> None:
        """Continue with the shards in a rank's memory; see `mpidl.job.takeover.fixed` for those that can't."""
        for each in self.served:
            self.lost += each.adopt(transport)
        self._connect(transport)

    def _connect(self, transport: Transport) -> None:
        self._link = self.served[0].link
        self._backoff = self._link.backoff()
        self._timer, self._crowded = timer(transport.crowded), transport.crowded
        if self._sandblaster is not None:
            self._sandblaster.bind(self._link)

    def unbind(self) -> None:
        """Move the shards out of the transport's memory, which is about to be freed."""
        for each in self.served:
            each.unbind()

    def run(self) -> None:
        """Apply pushes and obey orders until the coordinator says to exit."""
        served, statuses = self.served, [each.status.figures for each in self.served]
        for status in statuses:
            status["state"] = max(State.WORKING, status["state"])
        started = self._timer()
        while (order := self._link.orders.read()).phase != Phase.EXIT:
            now = time.perf_counter()
            worked = max(each.serve(order, now) for each in served)
            if self._sandblaster is not None:
                worked |= self._sandblaster.obey()
            self.report_interruption(self._link.reports)
            if worked:
                seconds = self._timer() - started
                for status in statuses:
                    status["busy_seconds"] += seconds
                started = self._timer()
                self._backoff.reset()
                self._backoff.progress()
            # To fall asleep and to be woken are part of the work that a core shared with others does.
            elif self._backoff.pause(min(each.due for each in served) - now) or not self._crowded:
                started = self._timer()
            if now - self._posted > POST_EVERY:
                self._posted = now
                for each in served:
                    each.post()

    def _obeyed(self) -> int:
        """Return the ordinal of the last order to save that all shards have taken up."""
        return min(each.order for each in self.served)
