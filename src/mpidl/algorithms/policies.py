"""What a shard does with a push.

A push arrives in chunks, and the chunks of several workers' pushes may arrive interleaved: a policy acts on one chunk
at a time and shards stay consistent per chunk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np

    from mpidl.shard import Shard


class Policy(Protocol):
    """Carried out by every shard on its own."""

    def receive(self, shard: Shard, chunk: int, values: np.ndarray, ordinal: int) -> None:
        """Act on chunk number `chunk` of the `ordinal`-th push (from 1) that the shard receives."""

    def complete(self, shard: Shard) -> None:
        """Act on the arrival of a push's last chunk: advance the shard's clock if this made an update."""


class ApplyAtOnce:
    """Give each push to the rule as a gradient, as it arrives (Downpour)."""

    def receive(self, shard: Shard, chunk: int, values: np.ndarray, ordinal: int) -> None:
        """Update the chunk's parameters."""
        shard.update(chunk, values, ordinal)

    def complete(self, shard: Shard) -> None:
        """Each push is an update."""
        shard.clock += 1
