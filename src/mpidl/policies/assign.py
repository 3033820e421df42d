"""Taking a push for the new parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpidl.policies.policy import Policy, Push

if TYPE_CHECKING:
    import numpy as np

    from mpidl.shard import Shard


class Assign(Policy):
    """A push holds parameters, such as the mean of all replicas': the shard takes them."""

    def receive(self, shard: Shard, chunk: int, values: np.ndarray, push: Push) -> None:
        """See `Policy.receive`."""
        shard.chunk(chunk)[:] = values
