"""The common part of workers that hold a shard themselves, without servers."""

from __future__ import annotations

from mpidl.engines.mpi.checkpoint_source import CheckpointSource
from mpidl.engines.mpi.request_handler import RequestHandler
from mpidl.shards.shard import Shard
from mpidl.transport.protocol import State
from mpidl.transport.status import ShardStatus


class OwnShard(RequestHandler):
    """Posts the figures of the worker's shard.

    Parameters
    ----------
    shard : Shard
    checkpoint : CheckpointSource
    """

    def __init__(self, shard: Shard, checkpoint: CheckpointSource) -> None:
        super().__init__(checkpoint)
        self.shard, self.shards = shard, (shard,)
        self._shard_status = ShardStatus(shard)

    def post(self) -> None:
        self._link.reports.post_shard(self._shard_status.taken())

    def end_pushes(self) -> None:
        self._shard_status.figures["state"] = State.TRAINED
        self._link.reports.post_shard(self._shard_status.taken(), wake=True)
