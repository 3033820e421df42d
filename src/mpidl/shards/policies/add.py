"""Adding each push to the parameters."""

from __future__ import annotations

import numpy as np

from mpidl.shards.policies.policy import Policy
from mpidl.shards.policies.scales import Scale, unscaled
from mpidl.shards.state import PushHeader, ShardState


class AddChange(Policy):
    """Add each push to the parameters: it is a change that the worker's own rule has made.

    Parameters
    ----------
    scale : callable
        Takes the staleness of a push and returns the factor of the change.
    """

    def __init__(self, scale: Scale = unscaled) -> None:
        self._scale, self.by_staleness = scale, scale is not unscaled
        # A scaled change is damped, whatever it changes.
        self.sums = self.adds_up = scale is unscaled

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        shard.add(chunk, values, self._scale(push.staleness))
