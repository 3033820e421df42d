"""Taking a push for the new parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpidl.shards.policies.policy import Policy, Push

if TYPE_CHECKING:
    import numpy as np

    from mpidl.shards.shard import Shard


class Assign(Policy):
    """A push holds parameters, such as the mean of all replicas': the shard takes them."""

    def apply_chunk(self, shard: Shard, chunk: int, values: np.ndarray, push: Push) -> None:
        """See `Policy.apply_chunk`."""
        shard.chunk(chunk)[:] = values
