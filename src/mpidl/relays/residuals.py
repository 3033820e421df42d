"""The residuals of a relay's encodings, and their files in checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpidl.parameters.layout import Layout
from mpidl.parameters.ranges import Range, within
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.writer import BackgroundTask, write_file
from mpidl.transport.protocol import SavedFiles
from mpidl.wire import ErrorFeedback, Wire

if TYPE_CHECKING:
    from mpidl.rma.reports import StatusReports

#: A relay's rings at the servers: of pushes, and of those that are late in a checkpoint.
EARLY, LATE = 0, 1


def relay_file(number: int) -> str:
    """Return the name of the file of a relay's residual, in a checkpoint."""
    return f"relay-{number}.h5"


def saved_residuals(checkpoint: Checkpoint, layout: Layout | None = None) -> Iterator[np.ndarray]:
    """Yield the residual of each relay in a checkpoint, shape (size,), in a layout as for `Checkpoint.read`."""
    for number in count():
        residual = checkpoint.vector(relay_file(number), "residual", layout)
        if residual is None:
            return
        yield residual


class RelayResiduals:
    """The residuals of a relay's two rings.

    When the relay marks an order in the late ring, that ring has no residual: `join` has moved it to the early ring. A
    checkpoint has the residual of the early ring at the relay's mark there, which is missing from its pushes.

    `scratch` returns the directory in which the checkpoint of an order is written. `feedback` has the error feedback of
    each ring and shard, none without a wire format; `statistics` have no residual. `order` is the ordinal of the last
    order that has been saved.
    """

    def __init__(
        self, number: int, scratch: Callable[[int], Path], wire: Wire | None, shards: Sequence[Range], dtype: Any,
        statistics: Sequence[Range] = (),
    ) -> None:  # fmt: skip
        self._number, self._scratch, self._shards = number, scratch, shards
        self.feedback: list[list[ErrorFeedback]] = []
        if wire is not None:
            self.feedback = [
                [ErrorFeedback(wire, shard.size, dtype, within(statistics, shard)) for shard in shards]
                for _ in (EARLY, LATE)
            ]
        self.order, self._writing = 0, BackgroundTask()

    def load(self, residual: np.ndarray) -> None:
        """Begin with an earlier residual, shape (size,)."""
        for feedback, shard in zip(self.feedback[EARLY], self._shards, strict=True):
            feedback.residual[:] = residual[slice(*shard)]

    def join(self) -> None:
        """Move the residual of the late ring to the early one."""
        for early, late in zip(*self.feedback, strict=True):
            early.residual += late.residual
            late.residual[:] = 0

    def save(self, order: int, reports: StatusReports) -> None:
        """Write the residual of the early ring for an order, and abandon the file of an earlier one."""
        self.order, self._writing = order, BackgroundTask()
        if not self.feedback:
            reports.saved(SavedFiles(order, intermediary=self._number))
            return
        path = self._scratch(order) / relay_file(self._number)
        residual = np.concatenate([each.residual for each in self.feedback[EARLY]])
        self._writing.begin(partial(write_file, path, {}, {"residual": residual}))

    def report(self, reports: StatusReports) -> None:
        """Report the file to the coordinator once it is on disk."""
        if self._writing.ended():
            reports.saved(SavedFiles(self.order, files=[relay_file(self._number)], intermediary=self._number))
