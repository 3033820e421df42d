"""The role of the coordinator: watch the other ranks, order checkpoints, report, and end the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from mpidl.algorithms import Exchange
from mpidl.algorithms.coordinator_requests import Iteration
from mpidl.engines.mpi.sandblaster.coordinator import SandblasterCoordinator
from mpidl.engines.totals import Totals, from_status
from mpidl.errors import MpidlError, RankError
from mpidl.job.checkpoints import keep_best
from mpidl.job.job import Job
from mpidl.report.reporter import Reporter
from mpidl.roles.events import Diverged, Evaluated, Event, Iterated, Looked, Saved, Signalled, Started, Trained
from mpidl.roles.instructions import Fail, Finish, Instruction, Keep, Log, Save, Stop, Test
from mpidl.roles.saving import Saving
from mpidl.roles.supervision import Supervisor
from mpidl.transport.interface.transport import Transport
from mpidl.transport.protocol import NO_MORE, Phase, State

#: Seconds between two looks at the other ranks' status.
LOOK_EVERY = 0.05
#: Longest sleep where no algorithm's coordinator waits for answers. Each time that this rank wakes, it takes a core
#: from those that compute.
IDLE_SLEEP = 0.02


class Coordinator:
    """Carries out what the run's `Supervisor` decides. It computes nothing: every rank's counters wait for it.

    It has its own state; `bind` gives it the other ranks.

    Parameters
    ----------
    job : Job
    reporter : Reporter
    shards, relays : int
        Number of shards, and of relays.
    """

    def __init__(self, job: Job, reporter: Reporter, shards: int, relays: int = 0) -> None:
        self._job, self._reporter, self._partitions = job, reporter, len(job.slices)
        self._supervisor = Supervisor.for_job(job, time.time())
        self._actions: dict[type, Callable[[Any], None]] = {
            Save: self._save, Test: self._test, Stop: self._stop, Log: self._log, Fail: self._fail,
            Keep: self._keep, Finish: self._finish,
        }  # fmt: skip
        self._sandblaster: SandblasterCoordinator | None = None
        if job.algorithm.coordinated:
            portions, state = job.schedule.portions, job.position.state
            self._sandblaster = SandblasterCoordinator(job.algorithm, portions, state, self)
        shared = job.algorithm.exchange is Exchange.SHARED_MEMORY
        self._saving = Saving(job, 1 if shared else shards, self._partitions, relays)
        self._tickets, self._phase = 0, Phase.TRAIN
        self._started = self._signalled = self._stopped = False
        self._trained = Totals(0.0)
        self._summary: dict[str, Any] | None = None

    def bind(self, transport: Transport) -> None:
        """Coordinate the ranks of a transport from now on."""
        self._link, self._rank, self._size = transport.coordinator(), transport.rank, transport.size
        self._roles, self._workers = transport.roles, transport.workers
        self._backoff = self._link.backoff(IDLE_SLEEP if self._sandblaster is None else None)
        self._link.set_tickets(NO_MORE if self._stopped else self._tickets)
        self._link.set_phase(self._phase)
        self._saving.bind(self._link)
        if self._sandblaster is not None:
            self._sandblaster.bind(self._link)
        if not self._started:
            # Ordered before any rank begins to work: servers obey before they look into their mailboxes.
            self._started = True
            self._tell(Started())

    def unbind(self) -> None:
        """Keep what only the transport's memory holds, which is about to be freed."""
        if self._summary is None:
            self._look()
        self._tickets = self._link.tickets_taken()

    def interrupt(self) -> None:
        """Stop the run as soon as the batches in work are done."""
        self._signalled = True

    def run(self) -> dict[str, Any]:
        """See the run through and return its summary."""
        self._trained = self._watch()
        self._tell(Trained(self._trained))
        while self._summary is None:
            self._complete_checkpoint()
            self._backoff.pause()
        self._set_phase(Phase.EXIT)
        return self._summary

    def _tell(self, event: Event) -> set[type[Instruction]]:
        """Tell the supervisor of a signal and of an event; carry out what it decides, and return its kinds."""
        if self._signalled or self._link.signals():
            # The signal may come from a launcher that ends the job because another rank met a full disk.
            with suppress(MpidlError):
                self._carry_out(self._supervisor.handle(Signalled()))
        return self._carry_out(self._supervisor.handle(event))

    def _carry_out(self, instructions: list[Instruction]) -> set[type[Instruction]]:
        for instruction in instructions:
            self._actions[type(instruction)](instruction)
        return {type(instruction) for instruction in instructions}

    def _watch(self) -> Totals:
        """Follow the training until every push has been applied; return the final totals."""
        steps = self._sandblaster.steps() if self._sandblaster is not None else None
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
            self._complete_checkpoint()
            self._tell(Looked(totals))
            states = [each["state"] for each in (self._link.workers, self._link.servers, self._link.relays)]
            if all((state >= State.TRAINED).all() for state in states):
                return self._look()
            self._pause(LOOK_EVERY if steps is None else 0.0)

    def _look(self) -> Totals:
        """Report the totals, and what has been evaluated since the last look."""
        self._link.look()
        if not self._saving.active:
            # Workers must know of all tickets taken since an order, until they have obeyed it.
            self._link.show_taken(self._tickets_taken())
        totals = self._totals()
        for epoch, result in self._link.evaluations():
            then = replace(totals, now=float(result["time"]))
            values = zip(self._job.figures.names, result["values"].tolist(), strict=True)
            self._evaluated(then, epoch, {f"{self._split}_{name}": value for name, value in values})
        self._look_for_divergence()
        self._reporter.look(totals)
        return totals

    def _totals(self) -> Totals:
        link = self._link
        return from_status(time.time(), link.workers, link.servers, self._partitions, link.relays)

    def _look_for_divergence(self) -> None:
        """Tell of the first worker whose loss is not finite, if there is one; it waits for the end of the run."""
        for worker in np.flatnonzero(self._link.workers["diverged"]).tolist():
            row = self._link.workers[worker]
            self._tell(Diverged(worker, int(row["diverged"]) - 1, float(row["loss"])))

    def _pause(self, seconds: float) -> None:
        """Wait, keeping MPI going; whoever wakes this rank ends it early."""
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            self._backoff.pause()

    def _tickets_taken(self) -> int:
        return self._tickets if self._stopped else self._link.tickets_taken()

    def _complete_checkpoint(self) -> None:
        """Go on with the checkpoint that has been ordered."""
        position = self._saving.completed()
        if position is not None:
            self._tell(Saved(time.time(), position.step))

    # What the supervisor decides.

    def _save(self, save: Save) -> None:
        totals = self._totals()
        seconds = self._job.position.seconds + totals.seconds
        self._saving.order(save.last, self._tickets_taken(), seconds, save.position)

    def _stop(self, stop: Stop) -> None:
        """Hand out no more portions; an iteration of an algorithm's coordinator is completed first."""
        self._stopped = True
        if self._sandblaster is None:
            self._tickets = self._link.set_tickets(NO_MORE)
            self._saving.stop(self._tickets)

    def _log(self, log: Log) -> None:
        self._reporter.log(log.kind, rank=self._rank, role="coordinator", **log.details)

    def _test(self, test: Test) -> None:
        if not test.final:
            return  # After an iteration, `SandblasterCoordinator` has it done.
        self._set_phase(Phase.EVALUATE)
        while not (self._link.workers["state"] == State.DONE).all():
            self._backoff.pause()
            self._link.look()
        values = self._values(np.ones(len(self._link.workers), bool), list(self._job.evaluated))
        self._evaluated(self._trained, self._reporter.epoch(self._trained), values, final=True)

    @property
    def _split(self) -> str:
        """Name of what the model is evaluated on while it trains."""
        return next(iter(self._job.evaluated))

    def _values(self, workers: np.ndarray, splits: Sequence[str]) -> dict[str, float]:
        """Return the figures of splits, of which each of the chosen workers has posted the sums over a part."""
        sums = self._link.sums[workers].sum(axis=0).reshape(len(self._job.evaluated), -1)
        return self._job.values(dict(zip(splits, sums, strict=False)))

    def _evaluated(self, totals: Totals, epoch: float, values: Mapping[str, float], final: bool = False) -> None:
        self._reporter.evaluated(totals, epoch, values, final)
        self._tell(Evaluated(totals.seconds, epoch, values))

    def _keep(self, keep: Keep) -> None:
        keep_best(self._job, keep.best)

    def _fail(self, fail: Fail) -> None:
        raise RankError(fail.cause, self._rank if fail.worker is None else self._workers[fail.worker])

    def _finish(self, finish: Finish) -> None:
        self._summary = self._reporter.close(
            self._trained,
            ranks=self._size,
            servers=len(self._roles.servers),
            replicas=len(self._roles.replicas),
            partitions=self._partitions,
            relays=len(self._roles.relays),
            interrupted=finish.interrupted,
            seconds_to_target=finish.seconds_to_target,
            stopped=finish.stopped,
            best=finish.best,
        )

    def _set_phase(self, phase: Phase) -> None:
        self._phase = phase
        self._link.set_phase(phase)

    # What Sandblaster's coordinator asks.

    def iterated(self, iteration: Iteration) -> tuple[bool, bool, int]:
        """Report an iteration, and save or test if it is time to; see `SandblasterCoordinator`."""
        totals = self._look()
        self._reporter.iterated(totals, iteration)
        told = self._tell(Iterated(totals, iteration))
        return self._stopped, Test in told, self._saving.number if Save in told else 0

    def tested(self, number: int) -> bool:
        """Report an evaluation, once workers have done all pieces of it; return whether they have."""
        took_part = self._link.workers["tests"] == number
        if self._link.workers["tested_samples"][took_part].sum() < self._job.evaluated[self._split].samples:
            return False
        values, totals = self._values(took_part, [self._split]), self._look()
        self._evaluated(totals, self._reporter.epoch(totals), values)
        return True

    def stopped(self) -> bool:
        """Return whether the run is to stop."""
        return self._stopped
