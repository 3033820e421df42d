"""Adding each push as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpidl.policies.policy import Policy, Push
from mpidl.policies.scales import Scale, unscaled
from mpidl.rules import Sgd

if TYPE_CHECKING:
    import numpy as np

    from mpidl.shard import Shard


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

    def receive(self, shard: Shard, chunk: int, values: np.ndarray, push: Push) -> None:
        """See `Policy.receive`."""
        self._adding.update(shard.chunk(chunk), (), values, push.ordinal, -self._scale(push.staleness))
