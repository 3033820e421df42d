"""The interface between a policy and the shard that carries it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import numpy as np

    from mpidl.shards.shard import Shard


@dataclass(frozen=True, slots=True)
class Push:
    """What a shard knows of a push from its first chunk on.

    Attributes
    ----------
    worker : int
    ordinal : int
        How many pushes have begun to arrive at the shard, this one included.
    fetched : int
        The shard's clock when the worker fetched.
    staleness : int
        Updates that the shard applied between the worker's fetch and the arrival of the push.
    portions : (int, int)
        The first and the last portion of data that the push was computed on.
    """

    worker: int
    ordinal: int
    fetched: int
    staleness: int
    portions: tuple[int, int]


class Policy:
    """Carried out by every shard on its own; an instance belongs to one shard.

    A push arrives in chunks, and the chunks of several workers' pushes may arrive interleaved: a policy acts on one
    chunk at a time, and what it keeps, it keeps per chunk.

    Attributes
    ----------
    awaited : bool
        Whether workers may be waiting for the shard's next update.
    """

    awaited: ClassVar[bool] = False

    def attach(self, shard: Shard) -> None:
        """Allocate what the policy keeps for a shard; called once, when the parameters have their first values."""

    def apply_chunk(self, shard: Shard, chunk: int, values: np.ndarray, push: Push) -> None:
        """Act on chunk number `chunk` of a push."""
        raise NotImplementedError

    def end_push(self, shard: Shard, push: Push) -> None:
        """Act on the arrival of a push's last chunk; by default each push is one update of the shard's clock."""
        shard.clock += 1

    def remove_worker(self, shard: Shard, worker: int) -> None:
        """Act on a worker's having no more pushes."""

    def apply_rest(self, shard: Shard) -> None:
        """Act on there being no more pushes."""
