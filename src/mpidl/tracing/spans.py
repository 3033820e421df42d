"""Spans, and the memory of fixed size in which a rank keeps them."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

#: What a rank does in a span: the names of the kinds, by their numbers.
KINDS = ("gradient", "step", "push", "fetch", "wait", "apply", "evaluate", "save", "recover")

#: One span. Numbers that don't apply to it are -1.
SPAN = np.dtype(
    [
        ("start", np.float64),  # seconds of the clock of the coordinator's host
        ("end", np.float64),
        ("spent", np.float64),  # seconds by the clock of the run's figures: without those that other ranks had the core
        ("push", np.int64),  # ordinal of the worker's push
        ("clock", np.int64),  # of the shard behind an application that has changed it, or as a fetch has found it
        ("kind", np.int32),
        ("shard", np.int32),
        ("pusher", np.int32),  # rank of the worker that has pushed
        ("staleness", np.int32),  # of the push when this application began
    ]
)
_PACK = struct.Struct("=dddqqiiii").pack_into

#: Spans that a rank keeps at most: the first ones, and the last ones.
FIRST, LAST = 1 << 13, 7 << 13


class Ring:
    """Keeps the first and the last spans of a rank, `first` and `last` of them at most.

    `written` is the number of spans so far.
    """

    def __init__(self, first: int = FIRST, last: int = LAST) -> None:
        self._memory = bytearray((first + last) * SPAN.itemsize)
        self._first, self._last = first, last
        self._place, self._end = 0, len(self._memory)
        self.written = 0

    def write(
        self, kind: int, start: float, end: float, spent: float, push: int = -1, clock: int = -1, shard: int = -1,
        pusher: int = -1, staleness: int = -1,
    ) -> None:  # fmt: skip
        """Keep a span, in the place of the oldest but the first ones if there is no room."""
        _PACK(self._memory, self._place, start, end, spent, push, clock, kind, shard, pusher, staleness)
        self.written += 1
        self._place += SPAN.itemsize
        if self._place == self._end:
            self._place = self._first * SPAN.itemsize

    @property
    def dropped(self) -> int:
        """Number of spans that later ones have replaced."""
        return max(0, self.written - self._first - self._last)

    def spans(self) -> np.ndarray:
        """Return a copy of the spans, sorted by start."""
        kept: Any = np.ndarray(len(self._memory) // SPAN.itemsize, SPAN, self._memory)[: self.written]
        found: np.ndarray = kept[np.argsort(kept["start"], kind="stable")]
        return found


def around(spans: np.ndarray, seconds: float, head: float = 2.0) -> np.ndarray:
    """Return the spans of the first `head` and of the last `seconds` seconds of spans sorted by start."""
    if not spans.size:
        return spans
    first, last = spans["start"][0], spans["end"].max()
    found: np.ndarray = spans[(spans["start"] < first + head) | (spans["end"] > last - seconds)]
    return found
