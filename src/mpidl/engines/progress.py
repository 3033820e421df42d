"""What both engines know of a replica: the batches that it has not pushed, and the state of its encodings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from mpidl.algorithms.replica_state import ReplicaState
from mpidl.data.loader import Loader
from mpidl.data.sampling import OwnPosition
from mpidl.parameters.ranges import Range, within
from mpidl.storage.position import ReplicaPosition
from mpidl.wire import Differences, ErrorFeedback, Wire

#: A portion, its first batch of some, and the batch after the last of them.
Part = tuple[int, int, int]


class UnpushedBatches:
    """Follows a replica from batch to batch.

    `portion` is that of the last batch, -1 before the first. `parts` are the batches computed since the last push: a
    portion, its first such batch, and the batch after the last. `unused` is the number of batches handed out whose
    gradient has not been computed, 0 or 1. `number` returns the number of a portion's batch.
    """

    def __init__(self, number: Callable[[int, int], int] = lambda portion, batch: portion) -> None:
        self.number = number
        self.parts: list[list[int]] = []
        self.portion, self._batch, self.unused = -1, -1, 0

    def load(self, position: ReplicaPosition) -> None:
        """Continue from a replica's position."""
        self.parts = [list(part) for part in position.unpushed]
        self.portion = position.portion

    def took(self, portion: int, batch: int) -> None:
        """Note the batch that the next gradient will come from."""
        self.portion, self._batch = portion, batch

    def computed(self) -> None:
        """Note that the gradient of the last batch has been computed."""
        self.unused = 0
        if self.parts and self.parts[-1][0] == self.portion:
            self.parts[-1][2] = self._batch + 1
        else:
            self.parts.append([self.portion, self._batch, self._batch + 1])

    @property
    def batch(self) -> int:
        """The number of the last batch in the run, -1 before the first."""
        return self.number(self.portion, self._batch) if self._batch >= 0 else -1

    @property
    def batches(self) -> tuple[int, int]:
        """The numbers of the first and the last batch of a push of all batches computed so far."""
        if not self.parts:
            return self.batch, self.batch
        (first_portion, first, _), (last_portion, _, last) = self.parts[0], self.parts[-1]
        return self.number(first_portion, first), self.number(last_portion, last - 1)

    def own_position(self, loader: Loader) -> OwnPosition | None:
        """Return how far the replica is in data of its own, if it has any."""
        return loader.own_position(self.unused, sum(loader.schedule.samples(*part) for part in self.parts))

    def position(
        self, loader: Loader, state: ReplicaState, before: int, *, batches: int, samples: int, **known: Any
    ) -> ReplicaPosition:
        """Return the position of the replica, which had taken `before` tickets before those of its loader.

        Batches whose gradient is in a loop of the user's own, and in no vector, come again.
        """
        parts, again = divided(self.parts, state.unstepped)
        starts = {portion: first for portion, first, _ in again}
        return ReplicaPosition(
            unpushed=parts,
            working=[*starts.items(), *(each for each in loader.unfinished(self.unused) if each[0] not in starts)],
            tickets=before + loader.tickets,
            portion=self.portion,
            counts=dict(state.counts),
            own=self.own_position(loader),
            batches=batches - state.unstepped,
            samples=samples - sum(loader.schedule.samples(*part) for part in again),
            **known,
        )

    def pushed(self, rest: int = 0) -> None:
        """Note that all batches but the last `rest` have been pushed."""
        if not rest:
            self.parts.clear()
            return
        pushed = sum(last - first for _, first, last in self.parts) - rest
        while pushed > 0:
            _, first, last = self.parts[0]
            self.parts[0][1] = min(last, first + pushed)
            pushed -= last - first
            if pushed >= 0:
                del self.parts[0]


def divided(parts: Sequence[Sequence[int]], count: int) -> tuple[list[Part], list[Part]]:
    """Return parts of portions without their last `count` batches, and these."""
    kept, last = [(portion, start, stop) for portion, start, stop in parts], list[Part]()
    while count > 0:
        portion, start, stop = kept.pop()
        middle = max(start, stop - count)
        kept += [(portion, start, middle)] if middle > start else []
        last.insert(0, (portion, middle, stop))
        count -= stop - middle
    return kept, last


class Encodings(Struct, frozen=True):
    """Error feedback of pushes and copies of fetched shards, for each shard; empty where nothing is encoded."""

    feedback: Sequence[ErrorFeedback] = ()
    copies: Sequence[Differences] = ()

    @classmethod
    def of(
        cls, shards: Sequence[Range], dtype: Any, wire: Wire | None, wire_fetch: Wire | None = None,
        statistics: Sequence[Range] = (),
    ) -> Encodings:  # fmt: skip
        """Return the initial state for pushes encoded by `wire` and fetches encoded by `wire_fetch`.

        `shards` make up a vector, or a worker's slice of it, counted from its beginning; ranges with `statistics` are
        not encoded.
        """
        parts = [(shard.size, within(statistics, shard)) for shard in shards]
        feedback = [] if wire is None else [ErrorFeedback(wire, size, dtype, kept) for size, kept in parts]
        copies = [] if wire_fetch is None else [
            Differences(wire_fetch, np.zeros(size, dtype), statistics=kept) for size, kept in parts
        ]  # fmt: skip
        return cls(feedback, copies)

    def vectors(self) -> dict[str, np.ndarray]:
        """Return the residual of the wire format, and the copy that follows the shards."""
        vectors = {"residual": np.concatenate([each.residual for each in self.feedback])} if self.feedback else {}
        if self.copies and all(each.begun for each in self.copies):
            vectors["copy"] = np.concatenate([each.values for each in self.copies])
        return vectors

    def load(self, vectors: Mapping[str, np.ndarray]) -> None:
        """Continue with the vectors of another worker."""
        start = 0
        for feedback in self.feedback if "residual" in vectors else ():
            size = feedback.residual.size
            feedback.residual[:] = vectors["residual"][start : start + size]
            start += size
        start = 0
        for copy in self.copies if "copy" in vectors else ():
            copy.copy(vectors["copy"][start : start + copy.values.size])
            start += copy.values.size


class StoppedGradients:
    """Counts the gradients of a replica that were given up, and the time that their rest would have taken.

    Attributes
    ----------
    count : int
    saved_seconds : float
        The mean duration of complete gradients less what each took; 0 before the first was complete.
    """

    def __init__(self) -> None:
        self.count, self.saved_seconds = 0, 0.0
        self._complete, self._seconds = 0, 0.0

    def completed(self, seconds: float) -> None:
        """Note the duration of a gradient that was computed to its end."""
        self._complete += 1
        self._seconds += seconds

    def stop(self, seconds: float) -> None:
        """Count a gradient that was given up after some seconds."""
        self.count += 1
        if self._complete:
            self.saved_seconds += max(0.0, self._seconds / self._complete - seconds)
