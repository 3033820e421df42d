"""A run in this process alone, without MPI: real training on its own, or a virtual cluster."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from mpidl.algorithms import Exchange
from mpidl.algorithms.coordinator_requests import Iteration
from mpidl.engines.totals import Totals
from mpidl.engines.virtual import Hooks, Times, VirtualEngine, VirtualTime
from mpidl.engines.virtual.machines import place_ranks
from mpidl.errors import MpidlError, UsageError
from mpidl.job.checkpoints import complete_checkpoint, keep_best
from mpidl.job.description import of_data, of_samples
from mpidl.job.fill import fill
from mpidl.job.job import Job
from mpidl.job.memory import check_memory
from mpidl.job.place import place
from mpidl.job.rehearsal import learn_outputs, rehearse_replica, rehearse_shard
from mpidl.job.restoring import identify, load_buffers, replica_position
from mpidl.job.slices import held_shards, packed_part, shards_of
from mpidl.job.training import training_of
from mpidl.nn.evaluation import evaluate_split
from mpidl.parameters import Range
from mpidl.report.origin import origin
from mpidl.report.recorder import Recorder
from mpidl.report.reporter import Reporter
from mpidl.roles.events import Diverged, Evaluated, Event, Iterated, Looked, Saved, Signalled, Started, Trained
from mpidl.roles.instructions import Fail, Finish, Keep, Log, Save, Stop, Test, dropped
from mpidl.roles.supervision import Supervisor
from mpidl.runs.judgement import say_unchanged, undisturbed
from mpidl.runs.signals import stopping
from mpidl.shards.policies import PushHeader
from mpidl.shards.shard import CHUNK_BYTES
from mpidl.storage.files import replica_file, scratch
from mpidl.storage.position import Position, ReplicaPosition, cut_position
from mpidl.storage.writer import save_shard, write_file

#: Vectors that a relay has: what it shows and fetches, and two sums.
VECTORS = 4
#: Seconds between two looks at the totals.
LOOK_EVERY = 0.05


class OneProcess:
    """One process that plays every role.

    Parameters
    ----------
    job : Job
    replicas : int
    times : Times, optional
        Durations of a virtual cluster; None for a real run, which has one replica.
    """

    def __init__(self, job: Job, replicas: int = 1, times: Times | None = None) -> None:
        self._job, self._virtual = job, times is not None
        self._partitions = 1 if times is None else times.cut.partitions
        if job.config.device.shards and not self._virtual:
            raise UsageError("device.shards: true is for servers on ranks of their own, and this is one process")
        identify(job, of_data(job.given) | of_samples(job.given))
        job.begin(replicas)
        vectors = 1 + len(job.states) + 2 + replicas
        check_memory(job, vectors, replicas)
        if times is not None and times.relay:
            relays = place_ranks(times, replicas, job.config.servers)[1].relays
            check_memory(job, vectors + VECTORS * len(relays), replicas)
        placed = place(job)
        job.rehearse()
        load_buffers(job, 0)
        chunk = CHUNK_BYTES // job.dtype.itemsize
        alone = replicas == 1 and not self._virtual and job.algorithm.only_reads
        whole = job.model.parameters if alone else np.empty(job.layout.size, job.dtype)
        self._shards = [fill(job, range, whole[slice(*range)], chunk) for range in self._ranges()]
        for split in (job.dataset.train, *job.evaluated.values()):
            split.load()
        learn_outputs(job)
        rehearse_shard(job)
        rehearse_replica(job)
        # A run that is refused leaves no directory behind.
        self._recorder = Recorder(job.config, resume=job.continues)
        job.directory = self._recorder.directory
        self._reporter = Reporter(
            job, self._recorder, origin([socket.gethostname()], None, job.config.run.seed, self._virtual)
        )
        self._reporter.placed([str(placed)] if placed else [])
        clock = None if self._virtual else time.time
        self._engine = VirtualEngine(
            replace(training_of(job), packed=packed_part(job, [shard.range for shard in self._shards])),
            self._shards,
            replicas,
            time=VirtualTime(times, job.config.run.seed, clock, start=time.time()),
            hooks=Hooks(self._evaluate_epoch, self._watch, self._log, self._diverged, self._iterated),
            state=job.position.state,
            resumed=self._resumed(),
            taken=self._tickets_before(),
        )
        for number, shard in enumerate(self._shards):
            shard.on_drop = partial(self._log_drop, number)
        self._supervisor = Supervisor.for_job(job, self._engine.now)
        self._actions: dict[type, Callable[[Any], None]] = {
            Save: self._save, Test: self._test, Stop: self._stop, Log: self._record, Fail: self._fail,
            Keep: self._keep, Finish: self._finish,
        }  # fmt: skip
        self._signalled = self._stopped = False
        self._order = 0
        self._looked_at = 0.0
        self._trained = Totals(0.0)
        self._summary: dict[str, Any] = {}

    def _resumed(self) -> dict[int, tuple[ReplicaPosition, dict[str, np.ndarray]]]:
        """Return where the replica of a real run goes on, and what it kept."""
        job = self._job
        if self._virtual or not job.replicas_resume:
            return {}
        assert job.checkpoint is not None
        return {0: (job.position.replicas[0], job.checkpoint.replica_vectors(0, layout=job.layout))}

    def _tickets_before(self) -> int:
        """Return how many tickets the replica had taken in turn, if it goes on where it was."""
        position = replica_position(self._job, 0)
        return position.tickets if position is not None and self._job.position.beginning is not None else 0

    def _ranges(self) -> list[Range]:
        if self._job.algorithm.exchange is Exchange.SHARED_MEMORY:
            return [Range(0, self._job.layout.size)]
        if self._job.algorithm.streamed:
            return [each.range for each in held_shards(self._job, 0)]
        return shards_of(self._job, self._job.config.servers or self._job.replicas)

    def run(self) -> dict[str, Any]:
        """Train, and return the run's summary."""
        engine, before = self._engine, self._fingerprints()
        with undisturbed(), stopping(self._interrupt):
            self._tell(Started())
            try:
                self._trained = engine.run()
            except UsageError:
                if not engine.look().samples:
                    self._recorder.discard()
                raise
            self._job.model.parameters[:] = engine.parameters()
            self._tell(Trained(self._trained))
        if self._fingerprints() == before:
            say_unchanged(self._summary)
        return self._summary

    def _fingerprints(self) -> list[int]:
        return [shard.fingerprint() for shard in self._shards]

    def _interrupt(self) -> None:
        self._signalled = True

    def _tell(self, event: Event) -> None:
        """Tell the supervisor an event, after a signal if there was one, and carry out what it answers."""
        events = [Signalled(), event] if self._signalled else [event]
        if isinstance(event, Saved):  # This checkpoint is on disk before the signal orders another.
            events.reverse()
        for each in events:
            for instruction in self._supervisor.handle(each):
                self._actions[type(instruction)](instruction)

    # What the engine calls.

    def _watch(self) -> None:
        """Look at the totals between two batches, if it is time to."""
        if self._signalled:
            self._tell(Signalled())
        if self._stopped:
            self._engine.stop()  # before every batch: a replica that has returned since has a new loader
        if time.time() - self._looked_at < LOOK_EVERY and self._engine.now < self._reporter.due:
            return
        self._looked_at = time.time()
        totals = self._engine.look()
        self._reporter.look(totals)
        self._tell(Looked(totals))

    def _diverged(self, replica: int, portion: int, loss: float) -> None:
        self._tell(Diverged(replica, portion, loss))

    def _iterated(self, iteration: Iteration) -> bool:
        """Report an iteration of the algorithm's coordinator; return whether to stop."""
        totals = self._engine.look()
        self._reporter.iterated(totals, iteration)
        self._tell(Iterated(totals, iteration))
        return self._stopped

    def _evaluate_epoch(self, epoch: float) -> None:
        """Evaluate the parameters when `epoch` epochs are over; the time that it takes is not training time."""
        started = time.time()
        values = self._evaluate(next(iter(self._job.evaluated)))
        if not self._virtual:
            self._engine.totals.evaluation_seconds += time.time() - started
        self._evaluated(self._engine.look(), epoch, values)
        self._looked_at = 0.0  # If it is the best so far, it is saved before the next batch.

    def _log(self, kind: str, replica: int, **details: Any) -> None:
        """Record what happened to a replica, with the virtual time."""
        roles = self._engine.roles
        assert roles is not None, "replicas die in virtual time only"
        self._recorder.event(
            kind, rank=roles.replicas[replica][0], role=f"worker {replica}", **details,
            virtual_time=self._engine.look().seconds,
        )  # fmt: skip

    def _log_drop(self, shard: int, push: PushHeader) -> None:
        self._record(dropped(push), role=f"server {shard}")

    # What the supervisor orders.

    def _save(self, save: Save) -> None:
        self._order += 1
        directory, files = scratch(self._job.checkpoints, self._order), []
        for number, shard in enumerate(self._engine.settled_shards()):
            finite = self._job.config.run.terminate_on_nan
            save_shard(directory, number, shard.range, shard.on_host(), finite)
        # The replicas of a virtual cluster begin anew.
        for number, replica in enumerate(self._engine.replicas[:0] if self._virtual else self._engine.replicas):
            if vectors := replica.vectors():
                files.append(replica_file(number))
                write_file(directory / files[-1], {}, vectors)
        position = save.position or self._position()
        complete_checkpoint(self._job, self._order, position, len(self._shards), files)
        self._stopped |= save.last
        self._tell(Saved(self._engine.now, position.step))

    def _position(self) -> Position:
        job, engine = self._job, self._engine
        seconds = job.position.seconds + engine.look().seconds
        in_turn = job.config.run.deterministic and not self._virtual
        taken = None if in_turn else engine.tickets
        position = cut_position(job.position, engine.positions(), job.schedule, taken=taken, seconds=seconds)
        return position._replace(replicas=()) if self._virtual else position

    def _test(self, test: Test) -> None:
        if test.final:
            values = self._evaluate(*self._job.evaluated)
            self._evaluated(self._trained, self._reporter.epoch(self._trained), values, final=True)
        else:
            self._evaluate_epoch(self._reporter.epoch(self._engine.look()))

    def _evaluate(self, *splits: str) -> dict[str, float]:
        """Return the figures of the shards' parameters on splits of these names."""
        job, model = self._job, self._job.model
        own = model.parameters.copy()
        model.parameters[:] = self._engine.parameters()
        sums = {}
        for name in splits:
            split = job.evaluated[name]
            sums[name] = evaluate_split(model, split, 0, split.samples, job.figures)
        model.parameters[:] = own
        return job.values(sums)

    def _evaluated(self, totals: Totals, epoch: float, values: Mapping[str, float], final: bool = False) -> None:
        self._reporter.evaluated(totals, epoch, values, final)
        self._tell(Evaluated(totals.seconds, epoch, values))

    def _stop(self, stop: Stop) -> None:
        self._stopped = True

    def _record(self, log: Log, role: str = "coordinator") -> None:
        self._reporter.log(log.kind, rank=0, role=role, **log.details)

    def _keep(self, keep: Keep) -> None:
        keep_best(self._job, keep.best)

    def _fail(self, fail: Fail) -> None:
        role = "coordinator" if fail.worker is None else f"worker {fail.worker}"
        self._recorder.event("failure", rank=0, role=role, cause=fail.cause)
        self._reporter.abandon()
        raise MpidlError(f"{role}: {fail.cause}")

    def _finish(self, finish: Finish) -> None:
        roles = self._engine.roles
        self._summary = self._reporter.close(
            self._trained,
            ranks=1 if roles is None else len(roles.names()),
            servers=self._job.config.servers,
            replicas=self._job.replicas,
            partitions=self._partitions,
            relays=0 if roles is None else len(roles.relays),
            interrupted=finish.interrupted,
            seconds_to_target=finish.seconds_to_target,
            stopped=finish.stopped,
            best=finish.best,
        )
