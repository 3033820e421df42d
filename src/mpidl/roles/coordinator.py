"""The role of the coordinator: watch the other ranks, order checkpoints, report, and end the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NoReturn

import msgspec
import numpy as np
from msgspec.structs import replace

from mpidl.algorithms import Exchange
from mpidl.algorithms.coordination import Coordinated, Iteration
from mpidl.engines import monotonic
from mpidl.engines.mpi.sandblaster import SandblasterCoordinator
from mpidl.engines.totals import Totals, from_status
from mpidl.errors import DivergenceError, MpidlError, Unfinished
from mpidl.history.lines import RankStatus
from mpidl.job.checkpoints import Checkpoints
from mpidl.job.fill import fill_parameters
from mpidl.job.ready import ReadyJob
from mpidl.launch.fault_points import fault_point
from mpidl.metrics.figures import named
from mpidl.parameters import Range
from mpidl.report.ranks import PostedRanks
from mpidl.report.reporter import Reporter
from mpidl.report.summary import Summary
from mpidl.rma.transport import Transport
from mpidl.roles import events
from mpidl.roles.checkpoint_coordinator import CheckpointCoordinator
from mpidl.roles.events import Fail, ReduceRates, Save, Test
from mpidl.roles.role import Role
from mpidl.roles.run_control import RunControl
from mpidl.transport.protocol import NO_MORE, Doing, Phase, State
from mpidl.transport.status import resident_bytes

#: Seconds between two looks at the other ranks' status. Each time that this rank wakes, it takes a core from those that
#: compute.
LOOK_EVERY = 0.05


class Coordinator(Role):
    """Executes a run on the ranks. It computes nothing: every rank's counters wait for it.

    `intermediaries` is the number of ranks that push without being workers. `incidents` returns the deaths of ranks and
    the recoveries so far, without a number of the first ones; it is called at each look.

    Its small state is kept as a record in the rank's memory, from which another process can go on at any moment: see
    `adopt`.
    """

    incidents: Callable[[int], Sequence[events.Incident]] = staticmethod(lambda seen: ())

    def __init__(self, ready: ReadyJob, reporter: Reporter, rank: int, shards: int, intermediaries: int = 0) -> None:
        super().__init__()
        placed, job = ready.placed, ready.job
        self._ready, self._reporter, self._partitions = ready, reporter, len(placed.slices)
        files = Checkpoints(ready)
        self._control = RunControl(placed, reporter, self, files, monotonic.now(), rank)
        self._sandblaster: SandblasterCoordinator | None = None
        if isinstance(job.algorithm, Coordinated):
            schedule, state = placed.schedule, placed.position.state
            self._sandblaster = SandblasterCoordinator(job.algorithm, schedule, placed.layout, state, self)
        shared = job.algorithm.exchange is Exchange.SHARED_MEMORY
        files_of_shards = 1 if shared else shards
        # Whether servers may make marks of workers: what a worker has taken is known, and can be computed again.
        config, by_servers = job.config, job.algorithm.exchange is Exchange.SERVERS and not intermediaries
        fixed = config.run.deterministic or config.data.owned or job.dataset.kept
        cuts = by_servers and self._partitions == 1 and not fixed
        self._checkpoints = CheckpointCoordinator(
            placed, files, files_of_shards, self._partitions, intermediaries, cuts
        )
        # When a signal came, and what workers had done when they were last looked at, each since a time.
        self._signalled: float | None = None
        self._done, self._since = np.array(-1), np.array(0.0)
        self._tickets, self._phase = 0, Phase.TRAIN
        reporter.present, reporter.status.ranks = self._present, self._rank_status
        self._evaluated = np.empty(placed.layout.size, job.dtype) if placed.sends_values else None
        if self._evaluated is not None:
            fill_parameters(placed, Range(0, placed.layout.size), self._evaluated)
        self._checkpoints.before_completion = self._keep
        self._started = self._stopped = False
        self._incidents = 0
        self._kept: dict[str, Any] = {}
        # The first event for the supervisor if this process has taken over from one that died.
        self._taken_over: events.Event | None = None

    def bind(self, transport: Transport) -> None:
        """Coordinate the ranks of a transport from now on."""
        self._attach(transport)
        self._link.tickets.set(NO_MORE if self._stopped else self._tickets)
        self._link.orders.set_phase(self._phase)
        self._link.orders.reduce(self._ready.placed.schedule.reductions)
        if not self._started:
            # Ordered before any rank begins to work: servers obey before they look into their mailboxes.
            self._started = True
            self._control.tell(events.Started())
        self._keep()

    def adopt(self, transport: Transport) -> None:
        self._attach(transport)
        record = self._link.record.read()
        if record is None:
            raise MpidlError("the coordinator's process has died and left no record of the run's state")
        self._load(msgspec.msgpack.decode(record))

    def _attach(self, transport: Transport) -> None:
        self._link, self._rank, self._size = transport.coordinator(), transport.rank, transport.comm.size
        self._roles, self._workers, self._read_present = transport.roles, transport.workers, transport.read_present
        self._backoff = self._link.backoff(LOOK_EVERY if self._sandblaster is None else None)
        self._processes, self._ranks = transport.processes, PostedRanks(transport.roles, transport.capacity.held_by)
        self._checkpoints.bind(self._link)
        if self._sandblaster is not None:
            self._sandblaster.bind(self._link)

    def unbind(self) -> None:
        """Keep what only the transport's memory holds, which is about to be freed."""
        if self._control.summary is None:
            self._look()
        self._tickets = self._link.tickets.taken()

    def run(self) -> Summary:
        """See the run through and return its summary."""
        try:
            return self._see_through()
        except Exception:
            self._reporter.abandon()
            raise

    def _see_through(self) -> Summary:
        if self._phase == Phase.EXIT:  # The process that died had written it.
            return self._reporter.recorder.read_summary()
        if self._taken_over is not None:
            self._control.tell(self._taken_over)
        if self._control.trained is None:
            self._control.tell(events.TrainingEnded(self._watch()))
        while (summary := self._control.summary) is None:
            self._complete_checkpoint()
            self._take_incidents()
            self._keep()
            self._backoff.pause()
        fault_point("summary-written")
        self._set_phase(Phase.EXIT)
        return summary

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
            self._control.tell(events.Looked(totals))
            posted = self._link.posted
            states = [each["state"] for each in (posted.workers, posted.servers, posted.intermediaries)]
            if all((state >= State.TRAINED).all() for state in states):
                return self._look()
            self._keep()
            self._lose_patience(State.TRAINED)
            self._pause(LOOK_EVERY if steps is None else 0.0)

    def _look(self) -> Totals:
        """Report the totals, and the evaluations since the last look."""
        self._link.posted.look()
        fault_point("looked")
        if not self._checkpoints.active:
            # Workers must know of all tickets taken since an order, until they have obeyed it.
            self._link.tickets.show_taken(self._tickets_taken())
        totals = self._totals()
        for evaluated in self._link.evaluations.look():
            self._receive_values()
            values = zip(self._ready.figures.names, evaluated.values, strict=True)
            figures = {f"{self._split}_{name}": value for name, value in values}
            self._control.evaluated(replace(totals, now=evaluated.time), figures, evaluated.epoch)
        self._look_for_divergence()
        self._take_incidents()
        self._reporter.report_due(totals)
        return totals

    def _totals(self) -> Totals:
        posted = self._link.posted
        return from_status(monotonic.now(), posted.workers, posted.servers, self._partitions, posted.intermediaries)

    def _rank_status(self) -> list[RankStatus]:
        return self._ranks.at(monotonic.now(), self._link.posted, self._processes, resident_bytes())

    def _present(self) -> np.ndarray:
        """Return the present parameters or, in a job without servers, those of the last evaluation."""
        if self._evaluated is not None:
            return self._evaluated.copy()
        vector = np.empty(self._ready.placed.layout.size, self._ready.job.dtype)
        self._read_present(vector)
        return vector

    def _receive_values(self) -> None:
        if self._evaluated is not None:
            self._link.posted.values([self._evaluated[slice(*own)] for own in self._ready.placed.slices])

    def _look_for_divergence(self) -> None:
        """Report the workers whose loss is not finite; they wait for the end of the run."""
        for worker in np.flatnonzero(self._link.posted.workers["diverged"]).tolist():
            row = self._link.posted.workers[worker]
            self._control.tell(events.Diverged(worker, int(row["diverged"]) - 1, float(row["loss"])))

    def _pause(self, seconds: float) -> None:
        """Wait, keeping MPI going, until the time is over or another rank wakes this one."""
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            self._backoff.pause()

    def _tickets_taken(self) -> int:
        return self._tickets if self._stopped else self._link.tickets.taken()

    def _complete_checkpoint(self) -> None:
        """Continue the checkpoint that has been ordered."""
        if (ended := self._checkpoints.completed()) is not None:
            position, complete = ended
            self._control.tell(events.CheckpointEnded(monotonic.now(), position.step, complete))

    def _take_incidents(self) -> None:
        for incident in self.incidents(self._incidents):
            self._incidents += 1
            self._control.tell(incident)

    def _lose_patience(self, state: State) -> None:
        """End the run once it has waited for long, after a signal, for workers to reach a state.

        If the last checkpoint is complete, it doesn't wait for workers that made no mark. When all have stopped, it
        waits for the files: a slow disk may take any time.
        """
        now, workers = time.monotonic(), self._link.posted.workers
        done = workers["batches"] * len(Doing) + workers["doing"]
        self._since, self._done = np.where(done == self._done, self._since, now), done
        self._signalled = self._signalled or (now if self.signalled() else None)
        if self._signalled is None:
            return
        late = set(np.flatnonzero(workers["state"] < state).tolist())
        lasted = now - self._signalled >= self._ready.job.config.checkpoint.patience
        if not late or (self._checkpoints.active if late <= self._checkpoints.cut_off else not lasted):
            return
        tasks = {Doing.BATCH: "in one batch (the model or its data)", Doing.EVALUATION: "in an evaluation"}
        names = [
            f"{self._named(self._workers[each])}, {tasks[workers['doing'][each]]} for {now - self._since[each]:.0f} s"
            for each in sorted(late - set(np.flatnonzero(workers["doing"] == Doing.WAITING).tolist()))
        ] or [self._named(self._roles.servers[0])]
        self._control.tell(events.Unanswered(self._totals(), f"not waiting any longer for {'; '.join(names)}"))
        assert self._control.summary is not None
        raise Unfinished(f"{self._control.summary['stopped']}")

    def _named(self, rank: int) -> str:
        return f"rank {rank} ({self._roles.role(rank)}) on {self._roles.hosts[rank]}"

    # The state from which another process continues.

    def _keep(self) -> None:
        """Record this coordinator's state if it has changed; the summary of a finished run says all."""
        if self._control.summary is not None:
            return
        state = {
            "control": self._control.state(),
            "reporter": self._reporter.state(),
            "checkpoints": self._checkpoints.state(),
            "evaluations": self._link.evaluations.seen,
            "incidents": self._incidents,
            "tickets": self._tickets if self._stopped else None,
        }
        if state != self._kept:
            self._kept = state
            self._link.record.write(msgspec.msgpack.encode(state, enc_hook=lambda value: value.tolist()))
        self._link.evaluations.take()

    def _load(self, state: dict[str, Any]) -> None:
        """Continue from the state that a process kept, and from what it and other ranks have done since."""
        given, tickets = self._link.orders.given(), state["tickets"]
        if tickets is None and self._link.tickets.taken() >= NO_MORE:
            # It has just stopped handing out portions: replicas know of all tickets from this one on.
            tickets = self._link.tickets.shown()
            self._checkpoints.stop(tickets)
        self._control.load(state["control"])
        self._reporter.load(state["reporter"])
        self._incidents, self._phase, self._started = state["incidents"], Phase(given.phase), True
        self._link.evaluations.seen = state["evaluations"]
        if tickets is not None:
            self._stopped, self._tickets = True, tickets
        self._ready.placed.schedule.reductions = given.reductions
        # A signal to it is recorded here at least.
        self.interrupted |= given.last > 0
        step = self._checkpoints.load(state["checkpoints"], given.number)
        self._taken_over = events.TakenOver() if step is None else events.CheckpointEnded(monotonic.now(), step)
        # It may have died before it had written these to all.
        self._link.orders.set_phase(self._phase)
        self._link.orders.reduce(given.reductions)

    # What the run's control asks.

    def signalled(self) -> bool:
        return self.interrupted or bool(self._link.posted.signals())

    def save(self, save: Save) -> None:
        seconds = self._ready.placed.position.seconds + self._totals().seconds
        self._checkpoints.order(save, self._tickets_taken(), seconds)

    def slow(self, slow: ReduceRates) -> None:
        self._ready.placed.schedule.reductions = slow.reductions
        self._link.orders.reduce(slow.reductions)

    def stop(self) -> None:
        """Hand out no more portions; an iteration of an algorithm's coordinator is completed first."""
        if self._stopped:
            return  # The process that died had done so.
        self._stopped = True
        if self._sandblaster is None:
            self._tickets = self._link.tickets.set(NO_MORE)
            self._checkpoints.stop(self._tickets)

    def test(self, test: Test) -> None:
        if not test.final:
            return  # After an iteration, `SandblasterCoordinator` has it done.
        self._set_phase(Phase.EVALUATE)
        self._take_incidents()
        while not (self._link.posted.workers["state"] == State.DONE).all():
            self._backoff.pause()
            self._link.posted.look()
            self._reporter.status_due(self._control.trained or self._totals())
            self._take_incidents()
            self._lose_patience(State.DONE)
        self._receive_values()
        values = self._values(np.ones(len(self._link.posted.workers), bool), list(self._ready.job.evaluated))
        self._control.evaluated(None, values, final=True)

    def fail(self, fail: Fail) -> NoReturn:
        if fail.passing:
            raise MpidlError(fail.cause)
        raise DivergenceError(fail.cause, self._rank if fail.worker is None else self._workers[fail.worker])

    def sizes(self) -> dict[str, int]:
        return self._roles.sizes()

    @property
    def _split(self) -> str:
        """Name of the split that is evaluated during the training."""
        return next(iter(self._ready.job.evaluated))

    def _values(self, workers: np.ndarray, splits: Sequence[str]) -> Mapping[str, float]:
        """Return the figures of splits from the sums that the chosen workers have posted, each over a part."""
        figures, posted = self._ready.figures, self._link.posted.sums[workers]
        parts = posted.reshape(len(posted), -1, figures.size)
        sums = [reduce(figures.merged, parts[:, place]) for place in range(len(splits))]
        return named(figures, dict(zip(splits, sums, strict=True)))

    def _set_phase(self, phase: Phase) -> None:
        self._phase = phase
        self._link.orders.set_phase(phase)

    # What Sandblaster's coordinator asks.

    def iterated(self, iteration: Iteration) -> tuple[bool, bool, int]:
        done = self._control.iterated(self._look(), iteration)
        tests = Test in done and bool(self._ready.job.evaluated)
        return self._stopped, tests, self._checkpoints.number if Save in done else 0

    def tested(self, number: int) -> bool:
        workers, split = self._link.posted.workers, self._ready.job.evaluated[self._split]
        took_part = workers["tests"] == number
        if workers["tested_samples"][took_part].sum() < split.samples:
            return False
        values, totals = self._values(took_part, [self._split]), self._look()
        self._control.evaluated(totals, values)
        return True

    def stopped(self) -> bool:
        return self._stopped
