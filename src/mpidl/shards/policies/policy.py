"""The interface between a policy and the shard that it acts on."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from mpidl.shards.state import PushHeader, ShardState


class Policy:
    """Carried out by every shard on its own; an instance belongs to one shard.

    A push arrives in chunks, and the chunks of several workers' pushes may arrive interleaved: a policy acts on one
    chunk at a time, and what it keeps, it keeps per chunk.

    Attributes
    ----------
    awaited : bool
        Whether workers may be waiting for the shard's next update.
    """

    awaited: ClassVar[bool] = False

    def attach(self, shard: ShardState) -> None:
        """Allocate what the policy keeps for a shard; called once, when the parameters have their first values."""

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        """Act on chunk number `chunk` of a push."""
        raise NotImplementedError

    def end_push(self, shard: ShardState, push: PushHeader) -> None:
        """Act on the arrival of a push's last chunk; by default each push is one update of the shard's clock."""
        shard.clock += 1

    def remove_worker(self, shard: ShardState, worker: int) -> None:
        """Act on a worker's having no more pushes."""

    def apply_rest(self, shard: ShardState) -> None:
        """Act on there being no more pushes."""
