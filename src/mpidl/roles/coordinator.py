"""The role of the coordinator: watch the board, order checkpoints, report, and end the run."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mpidl.algorithms.coordinator_requests import Iteration
from mpidl.algorithms.sandblaster import Sandblaster
from mpidl.engines.mpi.sandblaster.coordinator import Conductor
from mpidl.engines.totals import Totals, from_status
from mpidl.errors import MpidlError
from mpidl.report.reporter import Reporter
from mpidl.rma.backoff import RUNG_SLEEP
from mpidl.rma.status import NO_MORE, Desk, Phase, State
from mpidl.rma.transport import ORDER_LEAVE, ORDER_NUMBER, Fabric
from mpidl.roles.supervision import (
    Evaluated,
    Event,
    Finish,
    Instruction,
    Iterated,
    Log,
    Looked,
    Save,
    Saved,
    Signalled,
    Started,
    Stop,
    Supervisor,
    Test,
    Trained,
)
from mpidl.storage import checkpoint
from mpidl.storage.position import Position
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
        self._supervisor = Supervisor.for_job(job, time.time())
        self._actions: dict[type, Callable[[Any], None]] = {
            Save: self._save, Test: self._test, Stop: self._stop, Log: self._log, Finish: self._finish,
        }  # fmt: skip
        self._saving: Position | None = None
        self._signalled = self._stopped = False
        self._totals = Totals(0.0)
        self._summary: dict[str, Any] = {}
        self._conductor: Conductor | None = None
        if isinstance(job.algorithm, Sandblaster):
            self._conductor = Conductor(
                fabric,
                job.algorithm,
                job.schedule.portions,
                job.position.state,
                self._iterated,
                self._tested,
                lambda: self._stopped,
            )
        # The initial state is ordered before any rank begins to work: servers obey before they look into mailboxes.
        self._tell(Started())

    def interrupt(self) -> None:
        """Stop the run as soon as the batches in work are done."""
        self._signalled = True

    def run(self) -> dict[str, Any]:
        """See the run through and return its summary."""
        self._watch()
        self._tell(Trained(self._totals, *self._progress()))
        while not self._summary:
            self._finish_if_saved()
            self._backoff.pause()
        return self._summary

    def _tell(self, event: Event) -> list[Instruction]:
        """Tell the supervisor an event, after a signal if there was one; carry out its answer and return it."""
        if self._signalled or self._desk[Desk.SIGNALS]:
            # The signal may come from a launcher that ends the job because another rank met a full disk.
            with suppress(MpidlError):
                self._carry_out(self._supervisor.handle(Signalled()))
        instructions = self._supervisor.handle(event)
        self._carry_out(instructions)
        return instructions

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            self._actions[type(instruction)](instruction)

    def _watch(self) -> None:
        """Follow the training until every push has been applied."""
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
            self._tell(Looked(self._look(), *self._progress()))
            self._finish_if_saved()
            if all(self._workers["state"] >= State.TRAINED) and all(self._servers["state"] >= State.TRAINED):
                self._look()
                return
            self._pause(LOOK_EVERY if steps is None else 0.0)

    def _look(self) -> Totals:
        self._fabric.window.sync()
        totals = from_status(time.time(), self._workers, self._servers)
        for index in np.flatnonzero((self._evaluated != 0) & ~self._reported):
            self._reported[index] = True
            result = self._evaluations[index]
            then = replace(totals, now=float(result["time"]))
            self._reporter.evaluated(then, int(index) + 1, float(result["loss"]), float(result["accuracy"]))
            self._tell(Evaluated(then.seconds, float(result["accuracy"])))
        self._reporter.look(totals)
        self._totals = totals
        return totals

    def _pause(self, seconds: float) -> None:
        """Wait, keeping MPI going; a doorbell ends it early."""
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            self._backoff.pause()

    def _progress(self) -> tuple[int | list[int], list[tuple[int, int]]]:
        """Return the portions taken, by each worker in deterministic runs, and those that are not used up."""
        rows = self._workers["unfinished"].reshape(-1, 2).tolist()
        unfinished = [(portion, done) for portion, done in rows if portion >= 0]
        if self._job.config.run.deterministic:
            return self._workers["tickets"].tolist(), unfinished
        return self._taken if self._taken is not None else self._tickets.read(), unfinished

    # What the supervisor orders.

    def _stop(self, stop: Stop) -> None:
        """Hand out no more portions; a coordinator's iteration is the last."""
        self._stopped = True
        if self._conductor is None:
            self._taken = self._tickets.swap(NO_MORE)

    def _log(self, log: Log) -> None:
        self._reporter.recorder.event(log.kind, rank=self._fabric.comm.rank, role="coordinator", **log.details)

    # Checkpoints: one at a time, ordered here, written by the servers.

    def _save(self, save: Save) -> None:
        self._saving = position = save.position
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
        if self._saving is None:
            return
        self._fabric.window.sync()
        if not all(self._servers["saved"] == self._order[0]):
            return
        job, position = self._job, self._saving
        self._saving = None
        directory = checkpoint.scratch(job.checkpoints, position.step)
        checkpoint.save_index(directory, job.layout, len(self._fabric.shards), position, job.config.to_toml(), VERSION)
        checkpoint.prune(job.checkpoints, job.config.checkpoint.keep)
        self._tell(Saved(time.time()))

    # A coordinator's iterations.

    def _iterated(self, iteration: Iteration) -> tuple[bool, bool, int]:
        """Report an iteration, and save if it is time to; see `Conductor`."""
        totals = self._look()
        self._reporter.iterated(totals, iteration)
        told = {type(instruction) for instruction in self._tell(Iterated(totals, iteration))}
        return self._stopped, Test in told, int(self._order[0]) if Save in told else 0

    def _tested(self, number: int) -> bool:
        """Report an evaluation on the test data, once workers have done all pieces of it; return whether they have."""
        rows = self._workers[self._workers["tests"] == number]
        if rows["test_samples"].sum() < self._job.dataset.test.samples:
            return False
        self._report_test(self._look(), *_means(rows))
        return True

    # The end.

    def _test(self, test: Test) -> None:
        """Let the workers evaluate the final parameters, each on a part of the test data."""
        if not test.final:
            return  # `Conductor` has it done after the iteration
        self._desk[Desk.PHASE] = Phase.EVALUATE
        self._fabric.window.sync()
        while not all(self._workers["state"] == State.DONE):
            self._backoff.pause()
            self._fabric.window.sync()
        self._report_test(self._totals, *_means(self._workers), final=True)

    def _report_test(self, totals: Totals, loss: float, accuracy: float, final: bool = False) -> None:
        self._reporter.evaluated(totals, self._reporter.epoch(totals), loss, accuracy, final)
        self._tell(Evaluated(totals.seconds, accuracy))

    def _finish(self, finish: Finish) -> None:
        roles = self._fabric.roles
        self._summary = self._reporter.close(
            self._totals,
            ranks=self._fabric.comm.size,
            servers=len(roles.servers),
            replicas=len(roles.replicas),
            interrupted=finish.interrupted,
            seconds_to_target=finish.seconds_to_target,
        )
        self._leave()

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
