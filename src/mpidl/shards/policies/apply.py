"""Applying each push as it arrives."""

from __future__ import annotations

import numpy as np

from mpidl.shards.policies.policy import Policy
from mpidl.shards.policies.scales import Scale, unscaled
from mpidl.shards.state import PushHeader, ShardState


class ApplyAtOnce(Policy):
    """Give each push, a gradient, to the rule at once, with a rate that may depend on its staleness.

    Parameters
    ----------
    scale : callable
        Takes the staleness of a push and returns the factor of the rule's rate.
    """

    adds_up = True

    def __init__(self, scale: Scale = unscaled) -> None:
        self._scale, self.sums, self.by_staleness = scale, scale is unscaled, scale is not unscaled

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        shard.update(chunk, values, push.ordinal, self._scale(push.staleness))
