"""The coordinator's part in checkpoints: ordering them, collecting the other ranks' reports, completing them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct, field

from mpidl.job.checkpoints import Checkpoints, replica_position
from mpidl.job.placed import PlacedJob
from mpidl.launch.fault_points import fault_point
from mpidl.rma.coordinator import CoordinatorLink
from mpidl.roles.events import Save
from mpidl.storage.files import next_order, replica_file
from mpidl.storage.position import Position, ReplicaPosition, cut_off, cut_position
from mpidl.storage.writer import BackgroundTask
from mpidl.transport.protocol import NO_MORE, STOPPED, TAKINGS, Doing, SavedFiles, ShardCut, State

#: Seconds after an order, and in times the mean duration of the slowest worker's batches, in which workers mark it.
MARKED_AFTER, TIMES = 3.0, 5


class _Checkpoint(Struct):
    """A checkpoint that was ordered when `taken` tickets were taken, after `seconds` of training.

    `position` is where the run is, if that is known beforehand.
    """

    taken: int
    seconds: float
    position: Position | None
    rates: dict[str, Any] | None = None
    shards: set[int] = set()
    replicas: dict[int, ReplicaPosition] = {}
    partitions: set[tuple[int, int]] = set()
    intermediaries: set[int] = set()
    files: list[str] = []
    since: float = field(default_factory=time.monotonic)
    #: Whether servers were told to make the marks that are missing, `since` then, what workers had computed before, and
    #: the pushes that each shard then has.
    cut: bool = False
    batches: Any = None
    cuts: dict[int, Mapping[int, ShardCut]] = {}
    #: What had been given back when the coordinator began to look for the replicas that they were made for.
    given_back: Mapping[int, tuple[int, int]] | None = None

    def add(self, saved: SavedFiles, end: int) -> None:
        self.shards.update(saved.shards)
        self.replicas.update(saved.replicas)
        self.partitions.update([] if saved.partition is None else [saved.partition])
        self.intermediaries.update([] if saved.intermediary is None else [saved.intermediary])
        self.files.extend(saved.files)
        self.cuts.update([] if saved.cuts is None else [saved.cuts])
        self.taken = self.taken if saved.taken is None else min(saved.taken, end)


class CheckpointCoordinator:
    """Orders and completes checkpoints, one at a time. A thread writes files, so that MPI makes progress meanwhile.

    A checkpoint has the files of `shards` shards. Replicas have `partitions` ranks; `intermediaries` are the ranks that
    push without being workers, and report what they keep. `before_completion` is called before an index is written.
    `cuts` says whether servers may make the marks of workers, as `mpidl.roles.served.ServedShard.save` describes.

    `cut_off` has the workers for which that was done in the checkpoint after which all stop.
    """

    before_completion: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self, placed: PlacedJob, checkpoints: Checkpoints, shards: int, partitions: int = 1, intermediaries: int = 0,
        cuts: bool = False,
    ) -> None:  # fmt: skip
        self._placed, self._checkpoints = placed, checkpoints
        self._shards, self._partitions, self._intermediaries = shards, partitions, intermediaries
        self._order = self._last = 0
        self._end = NO_MORE
        self._checkpoint: _Checkpoint | None = None
        self._completing = BackgroundTask()
        # The order that is being completed, and where the run was; and whether that could be done.
        self._completed: tuple[int, Position] | None = None
        self._is_complete = True
        self._may_cut, self.cut_off = cuts, set[int]()

    @property
    def number(self) -> int:
        """Ordinal of the last order."""
        return self._order

    @property
    def active(self) -> bool:
        """Whether a checkpoint has been ordered and is not complete."""
        return self._checkpoint is not None

    def state(self) -> dict[str, Any]:
        """Return the state with which a coordinator in another process continues.

        "completing" has the order and the step of a checkpoint whose index is being written, if one is.
        """
        completing = None
        if self._checkpoint is not None and self._completed is not None and self._completed[0] == self._order:
            completing = self._order, self._completed[1].step
        return {"order": self._order, "end": self._end, "completing": completing}

    def load(self, state: Mapping[str, Any], ordered: int) -> int | None:
        """Resume from the `state` of another, whose last order is `ordered`; a checkpoint in progress is given up.

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
        fault_point("checkpoint-ordered")

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
            return self._complete(self._checkpoint)
        if self._completing.ended() and self._completed is not None:
            order, position = self._completed
            if order == self._order:
                self._checkpoint = None
                return position, self._is_complete
        return None

    def _complete(self, found: _Checkpoint) -> tuple[Position, bool] | None:
        """Write the index if all else has been reported; give a checkpoint up that isn't one cut of all shards."""
        if found.cut:
            if len(found.cuts) < self._shards or len(found.shards) < self._shards or self._reports_come(found):
                return None
            found.given_back = self._link.posted.given_back(self._order)
            if (off := self._cut_off(found)) is None:
                self._checkpoint = None
                return self._placed.position, False
            found.replicas |= off
            self.cut_off = set(off) if self._last else set()
            found.files = [file for file in found.files if file not in map(replica_file, off)]
        elif self._may_cut and time.monotonic() - found.since > self._marked_after():
            found.cut, found.since, found.batches = True, time.monotonic(), self._link.posted.workers["batches"].copy()
            self._link.orders.cut(self._order)
        replicas = 0 if found.position is not None else self._placed.replicas
        reported = len(found.replicas) == replicas and len(found.partitions) == replicas * (self._partitions - 1)
        if reported and len(found.shards) == self._shards and len(found.intermediaries) == self._intermediaries:
            position = self._where(found)._replace(rates=found.rates)
            order, files = self._order, sorted(found.files)
            self._completed = order, position
            self.before_completion()
            self._completing.begin(partial(self._write, order, position, files))
        return None

    def _marked_after(self) -> float:
        """Return the seconds in which workers mark an order; before the end, they have a third of its patience at most.

        Nothing tells how long an evaluation takes.
        """
        posted, patience = self._link.posted, self._placed.job.config.checkpoint.patience
        seconds = MARKED_AFTER + TIMES * posted.longest()
        if (posted.workers["doing"] == Doing.EVALUATION).any():
            seconds = max(seconds, patience)
        return min(seconds, patience / 3) if self._last else seconds

    def _reports_come(self, found: _Checkpoint) -> bool:
        """Return whether a worker that has made its mark may still report its file: a slow disk is no hang."""
        workers, missing = self._link.posted.workers, {*range(self._placed.replicas)} - found.replicas.keys()
        marked = [worker for worker in missing if all(cut[worker].marked for cut in found.cuts.values())]
        if (workers["batches"] != found.batches)[marked].any():
            found.since, found.batches = time.monotonic(), workers["batches"].copy()
        soon, done = time.monotonic() - found.since < self._marked_after(), workers["state"][marked] >= State.TRAINED
        return bool(marked) and (soon or bool(done.any()))

    def _cut_off(self, found: _Checkpoint) -> dict[int, ReplicaPosition] | None:
        """Return where the replicas are for which servers have made marks; None if it isn't the same on all shards."""
        positions, schedule = {}, self._placed.schedule
        for worker in range(self._placed.replicas):
            cuts = [own[worker] for own in found.cuts.values()]
            # One that has made its mark, and hangs before it has reported its file, is as one that hasn't.
            if worker in found.replicas and all(cut.marked for cut in cuts):
                continue
            taken = self._link.posted.taken(worker)
            if taken is None or min(cut.pushes for cut in cuts) < 0 or len({cut[:2] for cut in cuts}) > 1:
                return None
            (tickets, claimed, clock), parts, last = taken, self._link.posted.given_back(NO_MORE), cuts[0].last
            known = [(each, schedule.part(*parts[each]) if each < 0 else schedule.assignment(each)) for each in tickets]
            own = [(each, part) for each, part in known if part is not None]
            portion, batch = schedule.place(last)
            found_last = any(part.portion == portion and part.first <= batch < part.last for _, part in own)
            # It has come back, and has ended, or taken so much that the notes are gone: the next one has its own mark.
            if clock == STOPPED or (len(tickets) >= TAKINGS and (last < 0 or not found_last)):
                return None
            before = replica_position(self._placed, worker)
            positions[worker] = cut_off(before, own, claimed, schedule, last=last, known=found.taken, clock=clock)
        return positions

    def _write(self, order: int, position: Position, files: Sequence[str]) -> None:
        self._is_complete = self._checkpoints.complete(order, position, self._shards, files)

    def _where(self, found: _Checkpoint) -> Position:
        if found.position is not None:
            return found.position
        placed, in_turn = self._placed, self._placed.job.config.run.deterministic
        return cut_position(
            placed.position if placed.replicas_resume else placed.position._replace(replicas=()),
            [found.replicas[number] for number in range(placed.replicas)],
            placed.schedule,
            taken=None if in_turn else found.taken,
            seconds=found.seconds,
            given_back=self._link.posted.given_back(self._order) if found.given_back is None else found.given_back,
        )
