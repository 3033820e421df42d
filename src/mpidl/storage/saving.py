"""Writing one shard's part of the checkpoints that the coordinator orders, a little at a time."""

from __future__ import annotations

from pathlib import Path

from mpidl.rma.status import Row, State
from mpidl.shards.shard import Shard
from mpidl.storage.checkpoint import Writing, save_shard, scratch


class Saving:
    """One shard's files, and its row on the board.

    Parameters
    ----------
    shard : Shard
    number : int
        The shard's number.
    row : Row
    checkpoints : Path
        Where checkpoints go.

    Attributes
    ----------
    obeyed : int
        Ordinal of the last order taken up, from 1.
    active : bool
        Whether there is something left to write.
    """

    def __init__(self, shard: Shard, number: int, row: Row, checkpoints: Path) -> None:
        self._shard, self._number, self._row, self._checkpoints = shard, number, row, checkpoints
        self.obeyed = 0
        self._writing: Writing | None = None

    @property
    def active(self) -> bool:
        """Whether there is something left to write."""
        return self._writing is not None

    def obey(self, order: int, step: int) -> None:
        """Begin to save the shard's present state as checkpoint `step`, unless this order has been taken up."""
        if order == self.obeyed:
            return
        self.obeyed = order
        shard = self._shard
        directory = scratch(self._checkpoints, step)
        # Of a copy, because the shard goes on changing while it is written.
        self._writing = save_shard(directory, self._number, shard.range, shard.snapshot(), shard.clock)

    def advance(self) -> None:
        """Write a piece, about a millisecond's; when all is on disk, say so."""
        if self._writing is not None and next(self._writing, StopIteration) is StopIteration:
            self._writing = None
            self._row.figures["saved"] = self.obeyed
            self.post(ring=True)

    def post(self, state: State | None = None, ring: bool = False) -> None:
        """Post the shard's figures to the board."""
        figures, shard = self._row.figures, self._shard
        if state is not None:
            figures["state"] = state
        figures["pushes"] = shard.pushes
        figures["dropped"] = shard.dropped
        figures["staleness"] = shard.staleness.counts
        figures["staleness_sum"] = shard.staleness.sum
        figures["staleness_max"] = shard.staleness.max
        self._row.post(ring or state is State.TRAINED)
