"""Adding each push as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpidl.rules import Sgd
from mpidl.shards.policies.policy import Policy, Push
from mpidl.shards.policies.scales import Scale, unscaled

if TYPE_CHECKING:
    import numpy as np

    from mpidl.shards.shard import Shard


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

    def apply_chunk(self, shard: Shard, chunk: int, values: np.ndarray, push: Push) -> None:
        """See `Policy.apply_chunk`."""
        self._adding.update(shard.chunk(chunk), (), values, push.ordinal, -self._scale(push.staleness))
