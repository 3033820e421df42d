"""Activities of a rank and applications of pushes, each of which leaves a span."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mpidl.tracing.spans import KINDS, Ring
from mpidl.transport.protocol import END, MARK, PushMessage, ShardClock
from mpidl.transport.status import Activity

if TYPE_CHECKING:
    from mpidl.roles.served import ServedShard

#: Seconds: interruptions that are shorter don't cut an activity, but lie together at the end of its span.
SHORT = 2e-5
#: Larger than any staleness.
MOST = 1 << 31
APPLY, SAVE, FETCH = KINDS.index("apply"), KINDS.index("save"), KINDS.index("fetch")
CLOCK = int(ShardClock.CLOCK)


class Frame:
    """An activity under way.

    Its span begins at `began`, unless it is `closed`: written already, up to the beginning of the activity within it.
    `spent` are its own seconds. `short` is the kind of the interruptions in the span that don't cut it, and `inside`
    and `inside_spent` are their seconds.
    """

    __slots__ = ("began", "closed", "inside", "inside_spent", "kind", "short", "spent")

    def __init__(self) -> None:
        self.kind, self.short, self.closed = 0, -1, False
        self.began = self.spent = self.inside = self.inside_spent = 0.0

    def begin(self, kind: int, at: float) -> None:
        self.kind, self.began, self.short, self.closed = kind, at, -1, False
        self.spent = self.inside = self.inside_spent = 0.0


class Line:
    """The activities under way on a rank, and the ring for their spans; spans never overlap.

    `pushes` has the rank's number of pushes so far as the only element; `shards` are the numbers of the shards that it
    fetches.
    """

    def __init__(self, ring: Ring, rank: int, pushes: Any, shards: Sequence[int]) -> None:
        self._ring, self._rank, self._pushes, self._shards = ring, rank, pushes, shards
        self._frames = [Frame()]
        self._depth = 0
        self._turn, self._shard, self._clock = 0, -1, -1

    @property
    def top(self) -> Frame:
        """The activity that interrupts all others."""
        return self._frames[self._depth - 1]

    def saw(self, clocks: np.ndarray) -> None:
        """Note the clock of one shard, of each in turn, for the span of a fetch."""
        self._turn = (self._turn + 1) % len(self._shards)
        self._shard, self._clock = self._shards[self._turn], int(clocks[self._turn, CLOCK])

    def begin(self, kind: int) -> None:
        """Begin an activity within those that are under way."""
        if self._depth == len(self._frames):
            self._frames.append(Frame())
        self._frames[self._depth].begin(kind, time.perf_counter())
        self._depth += 1

    def end(self) -> None:
        """End the last activity that has begun."""
        now = time.perf_counter()
        self._depth -= 1
        frame = self._frames[self._depth]
        outer = self._frames[self._depth - 1] if self._depth else None
        if outer is not None and not outer.closed:
            if now - frame.began < SHORT and frame.short < 0 and outer.short in (-1, frame.kind):
                outer.short = frame.kind
                outer.inside += now - frame.began
                outer.inside_spent += frame.spent
                return
            self._close(self._depth - 1)
        self._write(frame, now)
        if outer is not None:
            outer.begin(outer.kind, now)

    def _close(self, depth: int) -> None:
        """Write the spans of activities up to a depth, each up to the beginning of the one within it."""
        for place in range(depth + 1):
            frame = self._frames[place]
            if not frame.closed:
                self._write(frame, self._frames[place + 1].began)
                frame.closed = True

    def _write(self, frame: Frame, end: float) -> None:
        push = int(self._pushes[0])
        if frame.inside:
            between = end - frame.inside
            self._ring.write(frame.short, between, end, frame.inside_spent, push, -1, -1, self._rank)
            end = between
        if frame.kind == FETCH:
            self._ring.write(FETCH, frame.began, end, frame.spent, push, self._clock, self._shard, self._rank)
            self._clock = self._shard = -1
        else:
            self._ring.write(frame.kind, frame.began, end, frame.spent, push, -1, -1, self._rank)


class TracedActivity(Activity):
    """An activity that leaves a span for each time in which no other interrupts it."""

    def __init__(self, line: Line, kind: str, seconds: Any, under_way: list[Activity]) -> None:
        super().__init__(kind, seconds, under_way)
        self._line, self._number = line, KINDS.index(kind)
        self.saw = line.saw  # type: ignore[method-assign]

    def __enter__(self) -> None:
        under_way = self._under_way
        if under_way:
            under_way[-1].pause()
        under_way.append(self)
        self._line.begin(self._number)
        self._since = self.timer()

    def __exit__(self, *error: object) -> None:
        under_way = self._under_way
        self.pause()
        under_way.pop()
        self._line.end()
        if under_way:
            under_way[-1].resume()

    def pause(self) -> None:
        spent = self.timer() - self._since
        self._seconds[0] += spent
        self._line.top.spent += spent


class Applications:
    """Traces the chunks that a shard's server applies: those of a push that follow each other are one span.

    `pushers` are the ranks with a ring, -1 for those that aren't workers. The seconds that a span has spent are those
    between its chunks' beginnings and ends: the clock of the figures takes longer to read.
    """

    def __init__(self, ring: Ring, served: ServedShard, pushers: Sequence[int]) -> None:
        self._ring, self._shard, self._number = ring, served.shard, served.number
        self._pushers = pushers
        self._apply, served.apply = served.apply, self.apply
        self._span = (-1, -1, 0, -1)  # kind, worker, push and staleness
        self._began = self._ended = self._spent = 0.0
        self._before = self._reached = -1

    def apply(self, message: PushMessage) -> None:
        """Apply a chunk, or take a mark or an end."""
        if message.chunk == END:
            self._apply(message)
            return
        before, began = self._shard.clock, time.perf_counter()
        self._apply(message)
        ended = time.perf_counter()
        kind, worker, push, _ = self._span
        own = SAVE if message.chunk == MARK else APPLY
        if (own, message.worker, message.push) != (kind, worker, push) or began - self._ended > SHORT:
            self.flush()
            # A coordinator's units have other numbers in the place of the clock.
            stale = before - message.fetched if 0 <= before - message.fetched < MOST else -1
            self._span, self._began = (own, message.worker, message.push, stale), began
            self._before = before
        self._ended, self._reached = ended, self._shard.clock
        self._spent += ended - began

    def flush(self) -> None:
        """Write the span that the next chunk might have continued."""
        kind, worker, push, staleness = self._span
        if kind >= 0:
            clock = self._reached if self._reached != self._before else -1
            linked = (push, clock, self._number, self._pushers[worker], staleness) if kind == APPLY else ()
            self._ring.write(kind, self._began, self._ended, self._spent, *linked)
        self._span, self._spent = (-1, -1, 0, -1), 0.0
