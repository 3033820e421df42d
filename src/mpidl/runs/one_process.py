"""The whole run in this process, without MPI: a world of one, or a virtual cluster."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np

from mpidl.algorithms import Exchange
from mpidl.algorithms.coordinator_requests import Iteration
from mpidl.engines.virtual import Hooks, Times, VirtualEngine, VirtualTime
from mpidl.errors import UsageError
from mpidl.job.job import Job
from mpidl.nn.evaluation import evaluate_split
from mpidl.parameters import Range, shards
from mpidl.report.progress import on_terminal
from mpidl.report.recorder import Recorder
from mpidl.report.reporter import Reporter
from mpidl.runs.signals import stopping
from mpidl.shards.policies import PushHeader
from mpidl.shards.shard import CHUNK_BYTES
from mpidl.storage import checkpoint
from mpidl.storage.checkpoint import Position
from mpidl.version import VERSION

#: Seconds between two looks at the totals.
LOOK_EVERY = 0.05


class OneProcess:
    """One process that plays every role.

    Parameters
    ----------
    job : Job
    replicas : int
    times : Times, optional
        How long things take in virtual time; None: this is a world of one, and its time is real.
    """

    def __init__(self, job: Job, replicas: int = 1, times: Times | None = None) -> None:
        self._job, self._virtual = job, times is not None
        if job.config.device.shards and not self._virtual:
            raise UsageError("device.shards: true is for servers on ranks of their own, and this is one process")
        job.replicas = replicas
        place = job.place()
        self._recorder = Recorder(job.config, resume=job.checkpoint is not None)
        job.directory = self._recorder.directory
        checkpoint.sweep(job.checkpoints)
        chunk = CHUNK_BYTES // job.dtype.itemsize
        self._shards = [job.fill(range, np.empty(range.size, job.dtype), chunk) for range in self._ranges()]
        job.warm()
        job.dataset.train.load()
        job.dataset.test.load()
        self._reporter = Reporter(job, self._recorder, on_terminal())
        self._reporter.placed([str(place)] if place else [])
        self._interrupted = self._reached = False
        self._iteration: Iteration | None = None
        self._passes = job.position.epoch
        clock = None if self._virtual else time.time
        self._engine = VirtualEngine(
            job.training,
            self._shards,
            replicas,
            time=VirtualTime(times, job.config.run.seed, clock, start=time.time()),
            hooks=Hooks(self._evaluate_epoch, self._watch, self._log, self._iterated),
            state=job.position.state,
        )
        self._saved_at = self._engine.now
        self._looked_at = 0.0
        for number, shard in enumerate(self._shards):
            shard.on_drop = partial(self._log_drop, number)

    def _ranges(self) -> list[Range]:
        size = self._job.layout.size
        if self._job.algorithm.exchange is Exchange.SHARED_MEMORY:
            return [Range(0, size)]
        return shards(size, self._job.config.servers or self._job.replicas)

    def run(self) -> dict[str, Any]:
        """Train, and return the run's summary."""
        with stopping(self._interrupt):
            if self._job.checkpoint is None:
                self._save()
            totals = self._engine.run()
            self._save()
            self._job.model.parameters[:] = self._engine.parameters()
            if self._interrupted:
                self._recorder.event("interrupted", rank=0, role="coordinator")
            else:
                loss, accuracy = self._evaluate()
                self._reporter.evaluated(totals, self._reporter.epoch(totals), loss, accuracy, final=True)
            replicas, servers = self._job.replicas, self._job.config.servers
            return self._reporter.close(
                totals,
                ranks=1 + servers + replicas if self._virtual else 1,
                servers=servers,
                replicas=replicas,
                partitions=1,
                interrupted=self._interrupted,
            )

    def _interrupt(self) -> None:
        self._interrupted = True

    def _watch(self) -> None:
        """Between two batches: report, save or stop if it is time to."""
        if self._interrupted or self._reached:
            self._engine.stop()
        if time.time() - self._looked_at < LOOK_EVERY and self._engine.now < self._reporter.due:
            return
        self._looked_at = time.time()
        totals = self._engine.look()
        self._reporter.look(totals)
        if self._iteration is None and totals.now - self._saved_at >= self._job.config.checkpoint.every:
            self._save()

    def _iterated(self, iteration: Iteration) -> bool:
        """Report an iteration of a coordinator, save and evaluate if it is time to; return whether to stop."""
        totals, job = self._engine.look(), self._job
        self._iteration = iteration
        self._reporter.iterated(totals, iteration)
        passes = (job.position.samples + iteration.samples) / job.dataset.train.samples
        crossed, self._passes = int(passes) > int(self._passes), passes
        if crossed:
            self._evaluate_epoch(int(passes))
        if totals.now - self._saved_at >= job.config.checkpoint.every:
            self._save()
        over = passes >= job.schedule.steps / job.schedule.steps_per_epoch
        return self._interrupted or self._reached or over

    def _log(self, kind: str, replica: int, **details: Any) -> None:
        """Record what happened to a replica, at the virtual time it did."""
        rank = 1 + self._job.config.servers + replica
        self._recorder.event(
            kind, rank=rank, role=f"worker {replica}", **details, virtual_time=self._engine.look().seconds
        )

    def _log_drop(self, shard: int, push: PushHeader) -> None:
        details = {"worker": push.worker, "portions": sorted(set(push.portions)), "staleness": push.staleness}
        self._recorder.event("drop", rank=0, role=f"server {shard}", **details)

    def _evaluate_epoch(self, epoch: int) -> None:
        started = time.time()
        loss, accuracy = self._evaluate()
        if not self._virtual:
            self._engine.totals.evaluation_seconds += time.time() - started
        self._reached = self._reporter.evaluated(self._engine.look(), epoch, loss, accuracy)

    def _evaluate(self) -> tuple[float, float]:
        model, test = self._job.model, self._job.dataset.test
        own = model.parameters.copy()
        model.parameters[:] = self._engine.parameters()
        loss, correct = evaluate_split(model, test, 0, test.samples)
        model.parameters[:] = own
        return loss / test.samples, correct / test.samples

    def _save(self) -> None:
        """Write a checkpoint, unless this step has one."""
        job, engine = self._job, self._engine
        self._saved_at = engine.now
        step = job.position.step + engine.totals.batches
        if step in checkpoint.steps(job.checkpoints):
            return
        samples = job.position.samples + engine.totals.samples
        next_portion, waiting = job.schedule.position(engine.tickets)
        unfinished = sorted(waiting + engine.unfinished())
        state = None
        if self._iteration is not None:
            state, samples = self._iteration.state, job.position.samples + self._iteration.samples
        position = Position(step, samples, samples / job.dataset.train.samples, next_portion, unfinished, state)
        directory = checkpoint.scratch(job.checkpoints, step)
        for number, shard in enumerate(self._shards):
            for _ in checkpoint.save_shard(directory, number, shard.range, shard.saved_vectors(), shard.clock):
                pass
        checkpoint.save_index(directory, job.layout, len(self._shards), position, job.config.to_toml(), VERSION)
        checkpoint.prune(job.checkpoints, job.config.checkpoint.keep)
        self._recorder.event("checkpoint", rank=0, role="coordinator", step=step)
