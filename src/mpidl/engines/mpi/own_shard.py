"""What workers have in common that hold a shard themselves, because there are no servers."""

from __future__ import annotations

from mpidl.engines.mpi.request_handler import RequestHandler
from mpidl.shards.shard import Shard
from mpidl.storage.shard_writer import ShardWriter
from mpidl.transport.interface import WorkerLink
from mpidl.transport.protocol import State
from mpidl.transport.status import ShardStatus


class OwnShard(RequestHandler):
    """Saves the worker's shard, and posts its figures.

    Parameters
    ----------
    shard : Shard
    writer : ShardWriter
        Writes the shard's checkpoints.
    """

    def __init__(self, shard: Shard, writer: ShardWriter) -> None:
        super().__init__()
        self._shard, self._writer, self._shard_status = shard, writer, ShardStatus(shard)

    def bind(self, link: WorkerLink) -> None:
        """See `RequestHandler.bind`."""
        self._link = link

    def post(self) -> None:
        """See `RequestHandler.post`."""
        self._link.post_shard(self._shard_status.taken())

    def end_pushes(self) -> None:
        """See `RequestHandler.end_pushes`."""
        self._shard_status.figures["state"] = State.TRAINED
        self._link.post_shard(self._shard_status.taken(), wake=True)

    def obey(self, order: int, step: int) -> None:
        """Take up an order to save, unless it has been."""
        self._writer.obey(order, step)

    @property
    def saving(self) -> bool:
        """Whether something is left to write."""
        return self._writer.active

    def save_some(self) -> None:
        """Write a piece of what has been ordered; when all is on disk, say so."""
        if self._writer.advance():
            self._shard_status.figures["saved"] = self._writer.obeyed
            self._link.post_shard(self._shard_status.taken(), wake=True)
