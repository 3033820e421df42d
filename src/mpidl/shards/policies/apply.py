"""Giving each push to the rule as it arrives."""

from __future__ import annotations

import numpy as np

from mpidl.shards.policies.policy import Policy
from mpidl.shards.policies.scales import Scale, unscaled
from mpidl.shards.state import PushHeader, ShardState


class ApplyAtOnce(Policy):
    """A push is a gradient: the rule applies it at once, with a rate that may depend on the push's staleness.

    Parameters
    ----------
    scale : callable
        Of a staleness, what the rule's rate is multiplied by.
    """

    def __init__(self, scale: Scale = unscaled) -> None:
        self._scale = scale

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        """See `Policy.apply_chunk`."""
        shard.update(chunk, values, push.ordinal, self._scale(push.staleness))
