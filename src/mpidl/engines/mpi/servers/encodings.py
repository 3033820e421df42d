"""A worker's state of encoded pushes and fetches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpidl.parameters.ranges import Range, within
from mpidl.wire import Differences, ErrorFeedback, Wire


@dataclass(frozen=True)
class Encodings:
    """Error feedback of pushes and copies of fetched shards, for each shard; empty where nothing is encoded."""

    feedback: Sequence[ErrorFeedback] = ()
    copies: Sequence[Differences] = ()

    @classmethod
    def of(
        cls,
        shards: Sequence[Range],
        dtype: Any,
        wire: Wire | None,
        wire_fetch: Wire | None = None,
        statistics: Sequence[Range] = (),
    ) -> Encodings:
        """Return the initial state for pushes encoded by `wire` and fetches encoded by `wire_fetch`.

        `shards` make up the worker's slice of the vector, counted from its beginning; ranges with `statistics` are not
        encoded.
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
