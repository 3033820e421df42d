"""The role of the coordinator: watch the board, order checkpoints, report, and end the run."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mpidl.algorithms.coordinator_requests import Iteration
from mpidl.engines.mpi.sandblaster.coordinator import Conductor
from mpidl.engines.totals import Totals, from_board
from mpidl.errors import MpidlError
from mpidl.report.reporter import Reporter
from mpidl.rma.backoff import RUNG_SLEEP
from mpidl.rma.status import NO_MORE, Desk, Phase, State
from mpidl.rma.transport import ORDER_LEAVE, ORDER_NUMBER, Fabric
from mpidl.storage import checkpoint
from mpidl.storage.checkpoint import Position
from mpidl.version import VERSION

if TYPE_CHECKING:
    from mpidl.job.job import Job

#: Seconds between two looks at the board.
LOOK_EVERY = 0.05
#: Longest sleep where it only looks on.
IDLE_SLEEP = 0.02


class Coordinator:
    """Drives one run; computes nothing itself, since every rank's counters wait for it.

    Parameters
    ----------
    job : Job
    fabric : Fabric
    reporter : Reporter
    """

    def __init__(self, job: Job, fabric: Fabric, reporter: Reporter) -> None:
        self._job, self._fabric, self._reporter = job, fabric, reporter
        window = fabric.window
        self._desk = window.local("desk")
        self._workers, self._servers = window.local("workers"), window.local("servers")
        self._evaluations, self._evaluated = window.local("evaluations"), window.local("evaluated")
        self._reported = np.zeros(len(self._evaluated), bool)
        self._tickets = fabric.tickets()
        self._taken: int | None = None
        # Each time that it wakes, it takes a core from those that compute.
        self._backoff = fabric.backoff(RUNG_SLEEP if fabric.units else IDLE_SLEEP)
        self._order = np.zeros(1, np.int64)
        self._saving: Position | None = None
        self._saved_at = time.time()
        self._interrupted = self._reached = False
        self._passes = job.position.epoch
        self._conductor: Conductor | None = None
        self._iteration: Iteration | None = None
        if job.algorithm.coordinated:
            self._conductor = Conductor(
                fabric,
                job.algorithm,
                job.schedule.portions,
                job.position.state,
                self._iterated,
                self._tested,
                lambda: self._reached,
            )
        if job.checkpoint is None:
            # Ordered before any rank begins to work: servers obey before they look into their mailboxes.
            self._save(self._position(0, job.schedule.position(0)))

    def interrupt(self) -> None:
        """Stop the run as soon as the batches in work are done."""
        self._interrupted = True

    def run(self) -> dict[str, Any]:
        """See the run through and return its summary."""
        totals = self._watch()
        self._finish_saving()
        position = self._current_position(totals)
        if position.step not in checkpoint.steps(self._job.checkpoints):
            self._save(position)
            self._finish_saving()
        if not self._interrupted:
            self._evaluate(totals)
        roles = self._fabric.roles
        summary = self._reporter.close(
            totals,
            ranks=self._fabric.comm.size,
            servers=len(roles.servers),
            replicas=len(roles.replicas),
            partitions=1,
            interrupted=self._interrupted,
        )
        self._leave()
        return summary

    def _watch(self) -> Totals:
        """Follow the training until every push has been applied; return the final totals."""
        steps = self._conductor.steps() if self._conductor is not None else None
        looked = 0.0
        while True:
            if steps is not None:
                if next(steps, StopIteration) is StopIteration:
                    steps = None
                elif time.perf_counter() - looked < LOOK_EVERY:
                    self._backoff.pause()
                    continue
                looked = time.perf_counter()
            totals = self._look()
            if (self._interrupted or self._desk[Desk.SIGNALS]) and self._taken is None:
                self._interrupted = True
                self._stop()
                # The signal may come from a launcher that ends the job because another rank met a full disk.
                with suppress(MpidlError):
                    self._reporter.recorder.event("interrupted", rank=self._fabric.comm.rank, role="coordinator")
            self._advance_checkpoint(totals)
            if all(self._workers["state"] >= State.TRAINED) and all(self._servers["state"] >= State.TRAINED):
                return self._look()
            self._pause(LOOK_EVERY if steps is None else 0.0)

    def _look(self) -> Totals:
        self._fabric.window.sync()
        totals = from_board(time.time(), self._workers, self._servers)
        for index in np.flatnonzero((self._evaluated != 0) & ~self._reported):
            self._reported[index] = True
            result = self._evaluations[index]
            then = replace(totals, now=float(result["time"]))
            if self._reporter.evaluated(then, int(index) + 1, float(result["loss"]), float(result["accuracy"])):
                self._stop()
        self._reporter.look(totals)
        return totals

    def _pause(self, seconds: float) -> None:
        """Wait, keeping MPI going; a doorbell ends it early."""
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            self._backoff.pause()

    def _stop(self) -> None:
        """Hand out no more portions; a coordinator's iteration is gone through with."""
        if self._conductor is not None:
            self._taken = 0
        elif self._taken is None:
            self._taken = self._tickets.swap(NO_MORE)

    # Checkpoints: one at a time, ordered here, written by the servers.

    def _position(self, step: int, data: tuple[int, list[tuple[int, int]]], samples: int = 0) -> Position:
        samples += self._job.position.samples
        return Position(step, samples, samples / self._job.dataset.train.samples, *data)

    def _current_position(self, totals: Totals) -> Position:
        """Return where the run is in its data; portions in work are to be gone on with, from their next batch."""
        if self._conductor is not None:
            step = self._job.position.step + totals.batches
            accrued = self._iteration.samples if self._iteration is not None else 0
            position = self._position(step, (0, []), accrued)
            return position._replace(state=self._iteration.state if self._iteration is not None else None)
        schedule = self._job.schedule
        if self._job.config.run.deterministic:
            # Worker w's i-th ticket is w + i * workers: some took more of theirs than others.
            count = len(self._workers)
            own = [{w + i * count for i in range(int(n))} for w, n in enumerate(self._workers["tickets"])]
            taken = max((max(tickets, default=-1) for tickets in own), default=-1) + 1
            missed = sorted(set(range(taken)).difference(*own))
        else:
            taken, missed = self._taken if self._taken is not None else self._tickets.read(), []
        next_portion, unfinished = schedule.position(taken)
        unfinished += [part[:2] for part in map(schedule.assignment, missed) if part is not None]
        rows = self._workers["unfinished"].reshape(-1, 2).tolist()
        unfinished += [(portion, done) for portion, done in rows if portion >= 0]
        step = self._job.position.step + totals.batches
        return self._position(step, (next_portion, sorted(unfinished)), totals.samples)

    def _advance_checkpoint(self, totals: Totals) -> None:
        if self._saving is not None:
            self._finish_if_saved()
        elif self._conductor is None and totals.now - self._saved_at >= self._job.config.checkpoint.every:
            position = self._current_position(totals)
            if position.step in checkpoint.steps(self._job.checkpoints):
                self._saved_at = totals.now
            else:
                self._save(position)

    def _save(self, position: Position) -> None:
        self._saving = position
        self._order[0] += 1
        order = np.array([self._order[0], position.step, 0], np.int64)
        self._desk[Desk.STEP] = position.step
        self._fabric.window.sync()
        self._desk[Desk.ORDER] = self._order[0]
        for rank in self._fabric.roles.servers:
            self._fabric.window.put(order[1:2], rank, "orders", 1)
            self._fabric.window.flush(rank)
            self._fabric.window.put(order[:1], rank, "orders", ORDER_NUMBER)
            self._fabric.window.flush(rank)
            self._fabric.doorbells.ring(rank)

    def _finish_if_saved(self) -> None:
        self._fabric.window.sync()
        if self._saving is None or not all(self._servers["saved"] == self._order[0]):
            return
        job, position = self._job, self._saving
        self._saving, self._saved_at = None, time.time()
        directory = checkpoint.scratch(job.checkpoints, position.step)
        checkpoint.save_index(directory, job.layout, len(self._fabric.shards), position, job.config.to_toml(), VERSION)
        checkpoint.prune(job.checkpoints, job.config.checkpoint.keep)
        self._reporter.recorder.event("checkpoint", rank=self._fabric.comm.rank, role="coordinator", step=position.step)

    def _finish_saving(self) -> None:
        while self._saving is not None:
            self._finish_if_saved()
            self._backoff.pause()

    # A coordinator's iterations.

    def _iterated(self, iteration: Iteration) -> tuple[bool, bool, int]:
        """Report an iteration, and save if it is time to; see `Conductor`."""
        job, totals = self._job, self._look()
        self._iteration = iteration
        self._reporter.iterated(totals, iteration)
        train = job.dataset.train.samples
        passes = (job.position.samples + iteration.samples) / train
        test, self._passes = int(passes) > int(self._passes), passes
        order = 0
        if self._saving is None and totals.now - self._saved_at >= job.config.checkpoint.every:
            self._save(self._current_position(totals))
            order = int(self._order[0])
        stop = self._interrupted or passes >= job.schedule.steps / job.schedule.steps_per_epoch
        return stop, test and not stop, order

    def _tested(self, number: int) -> bool:
        """Report an evaluation on the test data, once workers have done all pieces of it; return whether they have."""
        rows = self._workers[self._workers["tests"] == number]
        if rows["test_samples"].sum() < self._job.dataset.test.samples:
            return False
        self._reached = self._reporter.evaluated(self._look(), self._passes, *_means(rows))
        return True

    # The end.

    def _evaluate(self, totals: Totals) -> None:
        """Let the workers evaluate the final parameters, each a part of the test data."""
        self._desk[Desk.PHASE] = Phase.EVALUATE
        self._fabric.window.sync()
        while not all(self._workers["state"] == State.DONE):
            self._backoff.pause()
            self._fabric.window.sync()
        loss, accuracy = _means(self._workers)
        self._reporter.evaluated(totals, self._reporter.epoch(totals), loss, accuracy, final=True)

    def _leave(self) -> None:
        """Send everybody home."""
        self._desk[Desk.PHASE] = Phase.LEAVE
        self._fabric.window.sync()
        leave = np.ones(1, np.int64)
        for rank in self._fabric.roles.servers:
            self._fabric.window.put(leave, rank, "orders", ORDER_LEAVE)
            self._fabric.window.flush(rank)
            self._fabric.doorbells.ring(rank)


def _means(rows: np.ndarray) -> tuple[float, float]:
    """Return mean loss and accuracy on the test data, of which each worker's row has a part."""
    samples = rows["test_samples"].sum()
    return float(rows["test_loss"].sum() / samples), float(rows["test_correct"].sum() / samples)
