"""The board: each rank's latest figures, in the coordinator's window.

Figures are running totals, so a rank overwrites its row whenever it likes and nothing is lost if the coordinator looks
less often. Rows are read by the coordinator alone; nobody sends messages.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from mpidl.rma.doorbells import Doorbells
from mpidl.rma.windows import Window
from mpidl.shards.shard import Shard
from mpidl.shards.staleness import BINS

#: A ticket number beyond every run: taking it means that there are no more portions.
NO_MORE = 1 << 60


class State(IntEnum):
    """How far a rank has come."""

    STARTING = 0
    WORKING = 1
    TRAINED = 2
    DONE = 3


WORKER_ROW = np.dtype(
    [
        ("state", np.int64),
        ("samples", np.int64),
        ("batches", np.int64),
        ("loss", np.float64),  # sum over samples of the training losses
        ("pushes", np.int64),
        ("fetches", np.int64),
        ("bytes_pushed", np.int64),
        ("bytes_fetched", np.int64),
        ("tickets", np.int64),  # portions taken
        ("unfinished", np.int64, (2, 2)),  # portions in work and taken ahead, each with its batches done; -1 for none
        ("first_fetch", np.float64),  # seconds since the epoch
        ("last_push", np.float64),
        ("evaluation_seconds", np.float64),
        ("waiting_seconds", np.float64),
        ("computing_seconds", np.float64),
        ("overhead_seconds", np.float64),
        ("computing_squares", np.float64),
        ("fetching_seconds", np.float64),
        ("pushing_seconds", np.float64),
        ("test_loss", np.float64),  # sums over this worker's part of the final evaluation
        ("test_correct", np.float64),
        ("test_samples", np.int64),
        ("tests", np.int64),  # how many times it has evaluated its part
    ]
)

SERVER_ROW = np.dtype(
    [
        ("state", np.int64),
        ("pushes", np.int64),
        ("dropped", np.int64),
        ("busy_seconds", np.float64),
        ("saved", np.int64),  # ordinal of the last checkpoint order that is on disk, from 1
        ("staleness_sum", np.float64),
        ("staleness_max", np.int64),
        ("staleness", np.int64, (BINS,)),
    ]
)

EVALUATION = np.dtype(
    [
        ("loss", np.float64),
        ("accuracy", np.float64),
        ("time", np.float64),  # when it was begun, seconds since the epoch
    ]
)


class Desk(IntEnum):
    """Elements of the coordinator's `desk`, where workers look for what to do after training."""

    TICKETS = 0  # portions taken so far
    PHASE = 1
    SIGNALS = 2  # ranks that a signal asked to stop
    ORDER = 3  # ordinal of the last order to save a checkpoint, from 1
    STEP = 4  # which checkpoint that is


class Phase(IntEnum):
    """What workers do that have no more portions."""

    TRAIN = 0
    EVALUATE = 1
    LEAVE = 2


def regions(workers: int, servers: int, evaluations: int) -> dict[str, tuple[Any, int]]:
    """Return the window regions that the coordinator offers."""
    return {
        "desk": (np.int64, len(Desk)),
        "clocks": (np.int64, workers),
        "workers": (WORKER_ROW, workers),
        "servers": (SERVER_ROW, servers),
        "evaluations": (EVALUATION, evaluations),
        "evaluated": (np.int64, evaluations),
    }


class Row:
    """A rank's own row: fill in `figures`, then `post`.

    Parameters
    ----------
    window : Window
    coordinator : int
        Rank of the coordinator.
    name : {"workers", "servers"}
    index : int
        The worker's or server's number.
    doorbells : Doorbells
    """

    def __init__(self, window: Window, coordinator: int, name: str, index: int, doorbells: Doorbells) -> None:
        self._window, self._coordinator, self._name, self._index = window, coordinator, name, index
        self._doorbells = doorbells
        self._rows = np.zeros(1, window.region(coordinator, name).dtype)
        self.figures: Any = self._rows[0]

    def post(self, ring: bool = False) -> None:
        """Write the row to the board; `ring` wakes the coordinator to look at once."""
        self._window.put(self._rows, self._coordinator, self._name, self._index)
        self._window.flush(self._coordinator)
        if ring:
            self._doorbells.ring(self._coordinator)

    def post_shard(self, shard: Shard, state: State | None = None, saved: int | None = None) -> None:
        """Fill in the figures of a shard and write the row; wake the coordinator if the shard is trained or saved.

        Parameters
        ----------
        shard : Shard
        state : State, optional
            How far the rank has come, if that has changed.
        saved : int, optional
            Ordinal of the last order to save whose file is on disk, if that has changed.
        """
        figures = self.figures
        if state is not None:
            figures["state"] = state
        if saved is not None:
            figures["saved"] = saved
        figures["pushes"] = shard.pushes
        figures["dropped"] = shard.dropped
        figures["staleness"] = shard.staleness.counts
        figures["staleness_sum"] = shard.staleness.sum
        figures["staleness_max"] = shard.staleness.max
        self.post(ring=saved is not None or state is State.TRAINED)
