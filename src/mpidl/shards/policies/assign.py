"""Replacing the parameters by each push."""

from __future__ import annotations

import numpy as np

from mpidl.shards.policies.policy import Policy
from mpidl.shards.state import PushHeader, ShardState


class Assign(Policy):
    """Replace the parameters by each push, such as the mean of all replicas' parameters."""

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        shard.assign(chunk, values)
