"""A run in this process alone, without MPI: real training on its own, or a virtual cluster."""

from __future__ import annotations

import socket
from functools import partial
from typing import Any, NoReturn

import numpy as np

from mpidl.algorithms import Exchange
from mpidl.algorithms.coordination import Iteration
from mpidl.engines import monotonic
from mpidl.engines.virtual import Hooks, Times, Training, VirtualEngine, VirtualTime
from mpidl.engines.virtual.machines import place_ranks
from mpidl.errors import MpidlError, UsageError
from mpidl.history.lines import RankStatus
from mpidl.jit import COMPILATION
from mpidl.job.checkpoints import Checkpoints, begin_data, identify, load_kept, replica_position
from mpidl.job.checks import of_data, of_samples
from mpidl.job.fill import fill, held_shards, shards_of
from mpidl.job.footprint import check_memory, in_one_process
from mpidl.job.job import Job
from mpidl.job.placed import place
from mpidl.job.ready import LocalModel, ReadyJob, local_model, replica_state
from mpidl.job.rehearsal import count_outputs, rehearse_own, rehearse_replica, rehearse_shard
from mpidl.launch.output import say
from mpidl.metrics.figures import Figures, named
from mpidl.nn.evaluation import evaluate_split
from mpidl.parameters import Range
from mpidl.report.ranks import simulated
from mpidl.report.recorder import Recorder, origin
from mpidl.report.reporter import Reporter
from mpidl.report.summary import Summary
from mpidl.report.text import warn_unchanged
from mpidl.roles import events
from mpidl.roles.events import Fail, ReduceRates, Save, Test, dropped
from mpidl.roles.run_control import RunControl
from mpidl.runs.features import mirrors, sparse, trace_one_process
from mpidl.runs.process import stopping, undisturbed
from mpidl.shards.policies import PushHeader
from mpidl.shards.shard import CHUNK_BYTES, Shard
from mpidl.storage.deltas import ShardFiles
from mpidl.storage.files import next_order, replica_file
from mpidl.storage.position import Position, ReplicaPosition, cut_position
from mpidl.storage.writer import write_file
from mpidl.topology.roles import Roles
from mpidl.transport.status import resident_bytes

#: Seconds between two looks at the totals.
LOOK_EVERY = 0.05


class OneProcess:
    """One process that plays every role.

    `times` are the durations of a virtual cluster; None for a real run, which has one replica.
    """

    def __init__(self, job: Job, replicas: int = 1, times: Times | None = None) -> None:
        self._virtual, self._partitions = times is not None, 1 if times is None else times.cut.partitions
        if job.config.device.shards and not self._virtual:
            raise UsageError("device.shards: true is for servers on ranks of their own, and this is one process")
        job = identify(job, of_data(job.given) | of_samples(job.given))
        self._placed = placed = place(job, replicas)
        self._check_memory(times)
        samplers = placed.samplers
        local = local_model(placed)
        # A replica alone that only reads the parameters computes with the shards' own.
        self._alone = replicas == 1 and not self._virtual and job.algorithm.pattern(1).only_reads
        unseen = rehearse_own(job)
        if unseen and not self._alone:
            say(unseen)
        load_kept(placed, local.host, 0)
        self._shards = self._fill(local)
        self._channel = sparse.in_one_process(placed, local.host, self._shards, alone=not self._virtual)
        for split in (job.dataset.train, *job.evaluated.values()):
            split.load()
        figures = Figures(job.metrics, *count_outputs(job, local))
        rehearse_shard(placed)
        rehearse_replica(placed, local)
        if COMPILATION.lost:
            say(str(COMPILATION))
        # A run that is refused leaves no directory behind.
        given, samples = job.script.loggers, placed.position.samples
        self._recorder = Recorder(job.config, resume=job.continues, given=given, samples=samples)
        directory, token = self._recorder.directory, self._recorder.token
        every = None if self._virtual else job.config.topology.mirror
        self._ready = ReadyJob(placed, local, figures, directory, token, mirrors.alone(every, directory, token))
        self._reporter = Reporter(
            placed, self._recorder, origin([socket.gethostname()], None, job.config.run.seed, self._virtual)
        )
        self._trace = trace_one_process(job.config, self._recorder.directory, self._shards, replicas, times)
        self._reporter.placed([str(local.device)] if local.device else [])
        state = partial(replica_state, placed, local)
        hooks = Hooks(self._evaluate_epoch, self._watch, self._log, self._diverged, self._iterated)
        self._engine = VirtualEngine(
            Training(
                job.algorithm,
                local.model,
                job.dataset.train,
                placed.schedule,
                state,
                self._channel,
                samplers,
                placed.layout,
            ),
            self._shards,
            replicas,
            time=VirtualTime(
                times, job.config.run.seed, None if self._virtual else monotonic.now, start=monotonic.now()
            ),
            hooks=hooks if self._trace is None else self._trace.watched(hooks),
            state=placed.position.state,
            resumed=self._resumed(),
            taken=self._tickets_before(),
        )
        for number, shard in enumerate(self._shards):
            shard.on_drop = partial(self._log_drop, number)
        self._reporter.status.ranks = self._rank_status
        self._reporter.present = partial(self._engine.parameters, placed.evaluated)
        self._checkpoints = Checkpoints(self._ready)
        self._files = ShardFiles(job.config.checkpoint.full_every, job.config.run.terminate_on_nan)
        self._control = RunControl(placed, self._reporter, self, self._checkpoints, self._engine.now)
        self._interrupted = self._ending = False
        self._order = 0
        self._looked_at = 0.0

    def _check_memory(self, times: Times | None) -> None:
        placed = self._placed
        check_memory(placed, [in_one_process(placed)])
        if times is not None and times.intermediaries is not None:
            intermediaries = place_ranks(times, placed.replicas, placed.job.config.servers)[1].intermediaries
            check_memory(placed, [in_one_process(placed, len(intermediaries))])

    def _fill(self, local: LocalModel) -> list[Shard]:
        placed, job = self._placed, self._placed.job
        whole = local.model.parameters if self._alone else np.empty(placed.layout.size, job.dtype)
        chunk = CHUNK_BYTES // job.dtype.itemsize
        return [fill(placed, range, whole[slice(*range)], chunk) for range in self._ranges()]

    def _resumed(self) -> dict[int, tuple[ReplicaPosition, dict[str, np.ndarray]]]:
        """Return where the replica of a real run goes on, and what it kept."""
        placed, checkpoint = self._placed, self._placed.job.checkpoint
        if self._virtual or not placed.replicas_resume:
            return {}
        assert checkpoint is not None
        return {0: (placed.position.replicas[0], checkpoint.replica_vectors(0, layout=placed.layout))}

    def _tickets_before(self) -> int:
        """Return how many tickets the replica had taken in turn, if it goes on where it was."""
        position = replica_position(self._placed, 0)
        return position.tickets if position is not None and self._placed.position.beginning is not None else 0

    def _ranges(self) -> list[Range]:
        placed, job = self._placed, self._placed.job
        if job.algorithm.exchange is Exchange.SHARED_MEMORY:
            return [Range(0, placed.layout.size)]
        if job.algorithm.streamed:
            return [each.range for each in held_shards(placed, 0)]
        return shards_of(placed, job.config.servers or placed.replicas)

    def run(self) -> Summary:
        """Train, and return the run's summary."""
        engine, control, before = self._engine, self._control, self._fingerprints()
        with undisturbed(), stopping(self.interrupt):
            begin_data(self._placed, 0)
            try:
                control.tell(events.Started())
                totals = engine.run()
                if self._trace is not None:
                    self._trace.end()
                self._ready.local.model.parameters[:] = engine.parameters()
                control.tell(events.TrainingEnded(totals))
            except Exception as error:
                if isinstance(error, UsageError) and not engine.current_totals().samples:
                    self._recorder.discard()
                self._reporter.abandon()
                raise
        assert control.summary is not None
        if self._ready.interim is not None:
            self._ready.interim.discard()
        if self._fingerprints() == before:
            warn_unchanged(control.summary)
        self._ready.local.model.parameters[:] = engine.parameters(self._placed.evaluated)
        self._channel.show()
        return control.summary

    def _rank_status(self) -> list[RankStatus]:
        engine, totals = self._engine, self._engine.current_totals()
        trained = self._control.trained is not None
        if engine.roles is not None:
            return simulated(engine.roles, engine.replicas, engine.servers, totals.seconds)
        rate = totals.samples / totals.seconds if totals.seconds > 0 else None
        return [
            RankStatus(
                rank=0, role="worker 0", host=socket.gethostname(), process=0, state="done" if trained else "working",
                samples=totals.samples, samples_per_second=rate, seconds=totals.seconds, memory=resident_bytes(),
            )
        ]  # fmt: skip

    def _fingerprints(self) -> list[int]:
        return [shard.fingerprint() for shard in self._shards]

    def interrupt(self, number: int) -> None:
        """Save and stop before the next batch."""
        self._interrupted = True

    # What the engine calls.

    def _watch(self) -> None:
        """Look at the totals between two batches, if it is time to."""
        if self._interrupted:
            self._control.tell(events.Signalled())
        if self._ending:
            self._engine.stop()  # before every batch: a replica that has returned since has a new loader
        if monotonic.now() - self._looked_at < LOOK_EVERY and self._engine.now < self._reporter.due:
            return
        self._looked_at = monotonic.now()
        totals = self._engine.current_totals()
        self._reporter.report_due(totals)
        self._control.tell(events.Looked(totals))

    def _diverged(self, replica: int, portion: int, loss: float) -> None:
        self._control.tell(events.Diverged(replica, portion, loss))

    def _iterated(self, iteration: Iteration) -> bool:
        """Report an iteration of the algorithm's coordinator; return whether to stop."""
        self._control.iterated(self._engine.current_totals(), iteration)
        return self._ending

    def _evaluate_epoch(self, epoch: float | None = None) -> None:
        """Evaluate the parameters when `epoch` epochs are over; the time that it takes is not training time."""
        if not self._ready.job.evaluated:
            return
        started = monotonic.now()
        values = self._evaluate(next(iter(self._ready.job.evaluated)))
        if not self._virtual:
            self._engine.totals.spent.evaluation_seconds += monotonic.now() - started
        self._control.evaluated(self._engine.current_totals(), values, epoch)
        self._looked_at = 0.0  # If it is the best so far, it is saved before the next batch.

    def _log(self, kind: str, rank: int, role: str, **details: Any) -> None:
        """Record what happened to a rank, with the virtual time."""
        now = self._engine.current_totals().seconds
        self._recorder.event(kind, rank=rank, role=role, **details, virtual_time=now)

    def _log_drop(self, shard: int, push: PushHeader) -> None:
        log = dropped(push, self._placed.schedule.portion)
        self._control.log(log, role=f"server {shard}")

    # What the run's control asks.

    def signalled(self) -> bool:
        return self._interrupted

    def save(self, save: Save) -> None:
        self._order = next_order(self._order, save.interim)
        directory, files = self._ready.scratch(self._order), []
        for number, shard in enumerate(self._engine.settled_shards()):
            self._files.save(
                directory, number, shard.range, shard.saved(shard.on_host()), self._engine.shards[number].clock
            )
        # The replicas of a virtual cluster begin anew.
        for number, replica in enumerate(self._engine.replicas[:0] if self._virtual else self._engine.replicas):
            if vectors := replica.vectors() | self._channel.vectors(replica):
                files.append(replica_file(number))
                write_file(directory / files[-1], {}, vectors)
        position = (save.position or self._position())._replace(rates=save.rates)
        complete = self._checkpoints.complete(self._order, position, len(self._shards), files)
        self._ending |= save.last
        self._control.tell(events.CheckpointEnded(self._engine.now, position.step, complete))

    def _position(self) -> Position:
        placed, engine = self._placed, self._engine
        seconds = placed.position.seconds + engine.current_totals().seconds
        in_turn = placed.job.config.run.deterministic and not self._virtual
        taken = None if in_turn else engine.supply.tickets
        position = cut_position(
            placed.position, engine.positions(), placed.schedule, taken=taken, seconds=seconds,
            given_back=engine.supply.given_back,
        )  # fmt: skip
        return position._replace(replicas=()) if self._virtual else position

    def test(self, test: Test) -> None:
        if test.final:
            self._control.evaluated(None, self._evaluate(*self._ready.job.evaluated), final=True)
        else:
            self._evaluate_epoch()

    def slow(self, slow: ReduceRates) -> None:
        self._placed.schedule.reductions = slow.reductions

    def stop(self) -> None:
        """Stop before the next batch."""
        self._ending = True

    def fail(self, fail: Fail) -> NoReturn:
        role = "coordinator" if fail.worker is None else f"worker {fail.worker}"
        self._recorder.event("failure", rank=0, role=role, cause=fail.cause)
        raise MpidlError(f"{role}: {fail.cause}")

    def sizes(self) -> dict[str, float]:
        roles, course = self._engine.roles or Roles((), ((0,),)), self._engine.course
        own: dict[str, float] = {
            "servers": self._ready.job.config.servers,
            "replicas": self._placed.replicas,
            "partitions": self._partitions,
        }
        return {**roles.sizes(), **own, **({} if course is None else course.figures(self._engine.current_totals()))}

    def _evaluate(self, *splits: str) -> dict[str, float]:
        """Return the figures of the shards' parameters on splits of these names."""
        ready, model = self._ready, self._ready.local.model
        own = model.parameters.copy()
        model.parameters[:] = self._engine.parameters(self._placed.evaluated)
        self._channel.show()
        sums = {}
        for name in splits:
            split = ready.job.evaluated[name]
            sums[name] = evaluate_split(model, split, 0, split.samples, ready.figures)
        model.parameters[:] = own
        return named(ready.figures, sums)
