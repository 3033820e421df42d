"""The coordinator's part in checkpoints: ordering them, collecting the other ranks' reports, completing them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mpidl.job.checkpoints import Checkpoints
from mpidl.job.placed import PlacedJob
from mpidl.launch.points import point
from mpidl.rma.coordinator import CoordinatorLink
from mpidl.roles.instructions import Save
from mpidl.storage.files import next_order
from mpidl.storage.position import Position, ReplicaPosition, cut_position
from mpidl.storage.writer import BackgroundTask
from mpidl.transport.protocol import NO_MORE, Saved


@dataclass
class _Checkpoint:
    """A checkpoint that was ordered when `taken` tickets were taken, after `seconds` of training.

    `position` is where the run is, if that is known beforehand.
    """

    taken: int
    seconds: float
    position: Position | None
    rates: dict[str, Any] | None = None
    shards: set[int] = field(default_factory=set)
    replicas: dict[int, ReplicaPosition] = field(default_factory=dict)
    partitions: set[tuple[int, int]] = field(default_factory=set)
    intermediaries: set[int] = field(default_factory=set)
    files: list[str] = field(default_factory=list)

    def add(self, saved: Saved, end: int) -> None:
        self.shards.update(saved.shards)
        self.replicas.update(saved.replicas)
        self.partitions.update([] if saved.partition is None else [saved.partition])
        self.intermediaries.update([] if saved.intermediary is None else [saved.intermediary])
        self.files.extend(saved.files)
        self.taken = self.taken if saved.taken is None else min(saved.taken, end)


class CheckpointCoordinator:
    """Orders and completes checkpoints, one at a time. A thread writes files, so that MPI makes progress meanwhile.

    A checkpoint has the files of `shards` shards. Replicas have `partitions` ranks; `intermediaries` are the ranks that
    push without being workers, and report what they keep. `before_completion` is called before an index is written.
    """

    before_completion: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self, placed: PlacedJob, checkpoints: Checkpoints, shards: int, partitions: int = 1, intermediaries: int = 0
    ) -> None:
        self._placed, self._checkpoints = placed, checkpoints
        self._shards, self._partitions, self._intermediaries = shards, partitions, intermediaries
        self._order = self._last = 0
        self._end = NO_MORE
        self._checkpoint: _Checkpoint | None = None
        self._completing = BackgroundTask()
        # The order that is being completed, and where the run was; and whether that could be done.
        self._completed: tuple[int, Position] | None = None
        self._is_complete = True

    @property
    def number(self) -> int:
        """Ordinal of the last order."""
        return self._order

    @property
    def active(self) -> bool:
        """Whether a checkpoint has been ordered and is not complete."""
        return self._checkpoint is not None

    def state(self) -> dict[str, Any]:
        """Return what the coordinator of the same checkpoints in another process goes on with.

        "completing" has the order and the step of a checkpoint whose index is being written, if one is.
        """
        completing = None
        if self._checkpoint is not None and self._completed is not None and self._completed[0] == self._order:
            completing = self._order, self._completed[1].step
        return {"order": self._order, "end": self._end, "completing": completing}

    def load(self, state: Mapping[str, Any], ordered: int) -> int | None:
        """Go on with the `state` of another, whose last order is `ordered`; a checkpoint in progress is given up.

        Return the step of one that is on disk without having been recorded.
        """
        self._order, self._end = max(state["order"], ordered), state["end"]
        completing = state["completing"]
        return completing[1] if completing and self._checkpoints.is_complete(*completing) else None

    def bind(self, link: CoordinatorLink) -> None:
        """Reach the other ranks by `link` from now on."""
        self._link = link
        if self._order:
            self._show()

    def stop(self, taken: int) -> None:
        """Note that no more tickets are handed out than the `taken` so far; the counter no longer tells."""
        self._end = taken

    def order(self, save: Save, taken: int, seconds: float) -> None:
        """Order a checkpoint; what is still missing of an earlier one is given up.

        Tickets below `taken` have been taken, in `seconds` of training.
        """
        self._order = next_order(self._order, save.interim)
        self._last = self._order if save.last else 0
        self._checkpoint = _Checkpoint(taken, seconds, save.position, save.rates)
        self._show()
        point("checkpoint-ordered")

    def _show(self) -> None:
        self._link.orders.save(self._order, self._last)
        self._link.orders.decide_round(self._order)

    def completed(self) -> tuple[Position, bool] | None:
        """Collect what has been reported; return the position of a checkpoint that has been ended just now.

        The second value says whether it is complete.
        """
        if self._checkpoint is None:
            return None
        for saved in self._link.posted.saved():
            if saved.order == self._order:
                self._checkpoint.add(saved, self._end)
        if not self._completing.active:
            self._complete(self._checkpoint)
        elif self._completing.ended() and self._completed is not None:
            order, position = self._completed
            if order == self._order:
                self._checkpoint = None
                return position, self._is_complete
        return None

    def _complete(self, found: _Checkpoint) -> None:
        """Write the index if all else has been reported."""
        replicas = 0 if found.position is not None else self._placed.replicas
        reported = len(found.replicas) == replicas and len(found.partitions) == replicas * (self._partitions - 1)
        if reported and len(found.shards) == self._shards and len(found.intermediaries) == self._intermediaries:
            position = self._where(found)._replace(rates=found.rates)
            order, files = self._order, sorted(found.files)
            self._completed = order, position
            self.before_completion()
            self._completing.begin(partial(self._write, order, position, files))

    def _write(self, order: int, position: Position, files: Sequence[str]) -> None:
        self._is_complete = self._checkpoints.complete(order, position, self._shards, files)

    def _where(self, found: _Checkpoint) -> Position:
        if found.position is not None:
            return found.position
        placed, in_turn = self._placed, self._placed.job.config.run.deterministic
        return cut_position(
            placed.position,
            [found.replicas[number] for number in range(placed.replicas)],
            placed.schedule,
            taken=None if in_turn else found.taken,
            seconds=found.seconds,
            given_back=self._link.posted.given_back(self._order),
        )
