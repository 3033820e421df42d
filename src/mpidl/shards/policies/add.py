"""Adding each push as it is."""

from __future__ import annotations

import numpy as np

from mpidl.rules import Sgd
from mpidl.shards.policies.policy import Policy
from mpidl.shards.policies.scales import Scale, unscaled
from mpidl.shards.state import PushHeader, ShardState


class Add(Policy):
    """A push is a change of the parameters, made by the worker's own rule: the shard adds it, whatever its rule.

    Parameters
    ----------
    scale : callable
        Of a staleness, what the change is multiplied by.
    """

    _adding = Sgd()

    def __init__(self, scale: Scale = unscaled) -> None:
        self._scale = scale

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        """See `Policy.apply_chunk`."""
        self._adding.update(shard.chunk(chunk), (), values, push.ordinal, -self._scale(push.staleness))
