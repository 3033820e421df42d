"""The role of a worker: a replica, driven by its algorithm, that also evaluates the model when an epoch is over."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import reduce
from queue import SimpleQueue
from typing import Any

import numpy as np

from mpidl.algorithms import Exchange
from mpidl.algorithms.coordination import Coordinated
from mpidl.data import Split
from mpidl.engines import monotonic
from mpidl.engines.mpi import MpiEngine
from mpidl.engines.mpi.by_fragments import ByFragments, Fragment
from mpidl.engines.mpi.by_reduction import ByReduction
from mpidl.engines.mpi.checkpoint_participant import CheckpointParticipant
from mpidl.engines.mpi.group import GroupLead, Lead, MpiGroup
from mpidl.engines.mpi.in_memory import InMemory
from mpidl.engines.mpi.request_handler import RequestHandler, SideChannel
from mpidl.engines.mpi.sandblaster import SandblasterWorker
from mpidl.engines.mpi.through_servers import ThroughServers
from mpidl.engines.progress import Encodings
from mpidl.job.checkpoints import begin_data, load_kept, replica_position
from mpidl.job.fill import fill, own_statistics
from mpidl.job.ready import ReadyJob, replica_state
from mpidl.job.rehearsal import rehearse_replica
from mpidl.launch.fault_points import fault_point
from mpidl.metrics.figures import Figures
from mpidl.nn.evaluation import evaluate_split
from mpidl.nn.model import PlacedModel
from mpidl.parameters import Held, Range, split
from mpidl.report.recorder import record_event
from mpidl.rma.transport import Transport
from mpidl.roles.role import Role
from mpidl.roles.ticket_taker import TicketTaker
from mpidl.shards.shard import CHUNK_BYTES, Shard
from mpidl.transport.coordination import TICKETS
from mpidl.transport.protocol import NO_MORE, Doing, EpochEvaluation, Phase, State
from mpidl.transport.status import WorkerStatus

#: Seconds between polls of the coordinator's order after training, with few workers.
LOOK_EVERY = 1e-3
#: Seconds in which a signal to a whole job reaches all of its processes.
FOR_ALL = 1.0
#: Pieces per worker into which evaluated data are split, where idle workers evaluate them.
PIECES = 4


class Worker(Role):
    """Trains one replica to the end of the data, then follows the coordinator's orders.

    Where replicas are cut, all ranks of one do so together, each with its slice of the vectors: they run the same
    algorithm, and the first of them decides for all.

    `number` is the replica's. `held` has all shards and their holders. `direct` says whether this worker pushes to the
    servers themselves; see `mpidl.transport.routes.Route`. `hand_over` lets others play this rank from the end of this
    process on, if they can, and returns whether they do. `computing` is the context of each gradient. `channel` is what
    the worker exchanges with servers beside its vectors.
    """

    hand_over: Callable[[], bool] = staticmethod(lambda: False)
    computing: Callable[[], AbstractContextManager[Any]] = staticmethod(nullcontext)

    def __init__(
        self,
        ready: ReadyJob,
        number: int,
        held: Sequence[Held],
        direct: bool = True,
        channel: SideChannel | None = None,
    ) -> None:
        super().__init__()
        self._channel = SideChannel() if channel is None else channel
        self._ready, self._placed, self._job = ready, ready.placed, ready.job
        self._model, self._slice, group = ready.local.model, ready.local.slice, ready.local.group
        self._number, self._replicas, self._direct = number, ready.placed.replicas, direct
        self._lead = GroupLead(group) if isinstance(group, MpiGroup) else Lead()
        own = [(place, each) for place, each in enumerate(held) if each.partition == self._lead.partition]
        self._encodings = Encodings()
        self._handler = self._make_handler(own)
        self._handler.lead = self._lead
        self._engine = self._make_engine()
        self.status: WorkerStatus = self._engine.status
        self._delay = self._job.config.debug.delay(number)
        # When a signal asked this process to end.
        self._terminated: float | None = None
        self._borrowers: SimpleQueue[Callable[[PlacedModel], None]] = SimpleQueue()
        # Reading and first touching the data, and compiling, don't count as training.
        for each in (self._job.dataset.train, *self._job.evaluated.values()):
            each.load()
        rehearse_replica(self._placed, ready.local)
        if isinstance(group, MpiGroup):
            group.sent = 0

    def _make_engine(self) -> MpiEngine:
        """Return the engine of this worker's replica, which continues from the checkpoint if the job's replicas do."""
        job, placed, number = self._job, self._placed, self._number
        state, working, tickets = replica_state(placed, self._ready.local), [], 0
        position = replica_position(placed, number)
        load_kept(placed, self._ready.local.host, number)
        if position is not None:
            assert job.checkpoint is not None
            vectors = job.checkpoint.replica_vectors(number, self._slice, placed.layout)
            state.load(vectors, position.counts, position.portion)
            self._handler.unpushed.load(position)
            self._handler.checkpoint.load(position, vectors)
            working, tickets = position.working, position.tickets if placed.position.beginning is not None else 0
        split = self._channel.split(job.dataset.train)
        sampler = placed.samplers[number]
        engine = MpiEngine(self._model, split, placed.schedule, self._handler, state, self, working, sampler)
        participant = CheckpointParticipant(
            number, self._handler, state, engine.loader, self._ready.scratch, job.config.run.deterministic, tickets,
            job.config.run.terminate_on_nan, self._slice if self._lead.partitions > 1 else None,
        )  # fmt: skip
        participant.clock = 0 if position is None else position.clock
        engine.participant = participant
        in_turn = range(number + tickets * self._replicas, NO_MORE, self._replicas)
        deterministic = job.config.run.deterministic
        self.tickets = TicketTaker(placed.schedule, participant, iter(in_turn) if deterministic else None)
        return engine

    def _make_handler(self, held: list[tuple[int, Held]]) -> RequestHandler:
        """Return the handler of requests, given the shards that make up the worker's slice, and their numbers."""
        job, algorithm, own_slice = self._job, self._job.algorithm, self._slice
        shards = [each.range.shift(-own_slice.start) for _, each in held]
        if algorithm.exchange is Exchange.SERVERS:
            if self._direct:
                wires = algorithm.encoding(), algorithm.fetch_encoding()
                self._encodings = Encodings.of(shards, job.dtype, *wires, own_statistics(self._placed, own_slice))
            return ThroughServers(
                shards, self._encodings, pattern=algorithm.pattern(self._replicas),
                model=self._model if self._direct else None, in_rounds=job.config.run.deterministic,
                channel=self._channel,
            )  # fmt: skip
        if isinstance(algorithm, Coordinated):
            return SandblasterWorker(
                shards, algorithm=algorithm, portions=self._placed.schedule.portions,
                between=self._report_interruption, test=self._evaluate_pieces,
            )  # fmt: skip
        own = [(place, each.range) for place, each in held if each.holder == self._number]
        reduces = algorithm.exchange is Exchange.REDUCTION
        own_shards = []
        for _, part in own:
            chunk = CHUNK_BYTES // job.dtype.itemsize if reduces else part.size
            own_shards.append(fill(self._placed, part, np.empty(part.size, job.dtype), chunk))
        if algorithm.streamed:
            # One shard of each replica per fragment.
            of_fragments = [shards[first : first + self._replicas] for first in range(0, len(held), self._replicas)]
            places = [place for place, _ in own]
            fragments = [Fragment(*each) for each in zip(places, own_shards, of_fragments, strict=True)]
            return ByFragments(fragments, self._evaluate_together)
        ((place, _),), (shard,) = own, own_shards
        if reduces:
            return ByReduction(shard, shards, self._evaluate_together, place, self._placed.evaluated)
        return InMemory(self._number, self._model, shard)

    @property
    def shards(self) -> Sequence[Shard]:
        return self._handler.shards

    def bind(self, transport: Transport) -> None:
        """Train with the ranks of a transport from now on."""
        number = self._number * self._lead.partitions + self._lead.partition
        self._link = transport.worker(number, self._encodings.feedback, self._encodings.copies)
        self._rank = transport.rank
        self._engine.bind(self._link)
        self.tickets.bind(self._link)
        self._link.reports.post(self.status.row)

    def unbind(self) -> None:
        """Release the transport's memory, which is about to be freed."""
        self._engine.loader.wait_for_ticket()
        self._handler.unbind()

    def run(self) -> None:
        """Run the replica to its end, then serve orders until the coordinator orders the exit."""
        algorithm, parameters = self._job.algorithm, self._model.parameters
        begin_data(self._placed, self._number)
        self._handler.start(parameters)
        requests = self._model.requests(algorithm, self._number, parameters, self._replicas, self._engine.state)
        self._engine.run(requests)
        if self.left:
            return
        self._report_interruption()
        self._engine.announce_end()
        fault_point("trained")
        self._follow_orders()
        self._model.copy_to_host()

    # What the engine asks.

    def between_batches(self) -> None:
        """Follow a signal, and lend the model."""
        if self._terminated is None:
            self._report_interruption()
        elif time.monotonic() - self._terminated > FOR_ALL:
            self._leave()
        self._lend_model()

    def interrupt(self, number: int) -> None:
        """Ask the run to stop, or this process to leave it if it alone gets SIGTERM; called by a signal."""
        super().interrupt(number)
        if number == signal.SIGTERM:
            self._terminated = self._terminated or time.monotonic()

    def _leave(self) -> None:
        """Take no more batches, and let another process play this rank, if the run continues and that is possible."""
        self._terminated = None
        if self._link.orders.read().last == 0 and self.hand_over():
            self.left, self.interrupted = True, False
            self._engine.loader.stop()
            record_event(self._ready.directory, "drain", self._rank, f"worker {self._number}")
        self._report_interruption()

    def lend_model(self, use: Callable[[PlacedModel], None]) -> None:
        """Have the thread that trains call `use` between two batches, or when it is done; parameters may change there.

        May be called by any thread.
        """
        self._borrowers.put(use)

    def _lend_model(self) -> None:
        while not self._borrowers.empty():
            own = self._model.parameters.copy()
            with self._handler.aside():
                self._borrowers.get()(self._model)
            self._model.parameters[:] = own

    def diverged(self) -> None:
        """Report a loss that is not finite to the coordinator, and wait for the job to end.

        A coordinator's line search tries steps that are too long, and decides itself.
        """
        if not self._job.config.run.terminate_on_nan or self._job.algorithm.coordinated:
            return
        self.status.figures["diverged"] = 1 + self._engine.state.portion
        self._link.reports.post(self.status.row, wake=True)
        while True:
            self._link.orders.read()
            time.sleep(self._link.reports.interval(LOOK_EVERY))

    def delay(self, seconds: float) -> float:
        """Return how long to sleep after a gradient that took `seconds`."""
        return self._delay(seconds)

    def epoch_over(self, epoch: int) -> None:
        """Evaluate now or, where all workers meet, when they do."""
        if not self._job.evaluated:
            return
        if isinstance(self._handler, ByReduction | ByFragments):
            self._handler.epoch_over = epoch
            return
        model = self._model
        with self._evaluating():
            at = monotonic.now()
            own = None if isinstance(self._handler, InMemory) else model.parameters.copy()
            self._handler.fetch(model.parameters)
            sums = self._evaluate(self._split, Range(0, self._split.samples))
            if own is not None:
                model.parameters[:] = own
            self._post_evaluation(epoch, at, sums)
            self._send_values(model.parameters)

    def _report_interruption(self) -> None:
        self.report_interruption(self._link.reports)

    # Evaluation.

    @property
    def _split(self) -> Split:
        """The splits evaluated during training."""
        return next(iter(self._job.evaluated.values()))

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Say that this worker evaluates in this context."""
        self.status.figures["doing"] = Doing.EVALUATION
        self._link.reports.post(self.status.row)
        with self.status.evaluate:
            yield
        self.status.figures["doing"] = Doing.BATCH
        self._link.reports.post(self.status.row)

    def _evaluate(self, split: Split, part: Range) -> np.ndarray:
        """Return the sums over a part of a split; zeros on all but the first rank of a replica."""
        figures = self._ready.figures
        # The others compute, but get no outputs.
        own = figures if self._lead.leads else Figures()
        sums = evaluate_split(self._model, split, part.start, part.stop, own)
        fault_point("evaluated")
        return sums if self._lead.leads else np.zeros(figures.size)

    def _evaluate_together(self, epoch: int, parameters: np.ndarray) -> None:
        """Evaluate this worker's part of the data, at the same time as all others."""
        model, part = self._model, split(self._split.samples, self._replicas)[self._number]
        with self._evaluating():
            at, own = monotonic.now(), None
            if parameters is not model.parameters:
                own = model.parameters.copy()
                model.parameters[:] = parameters
            sums = self._evaluate(self._split, part)
            # At its first reduction of objects, mpi4py would hold the GIL until all ranks reduce; some may wait for a
            # thread of this one.
            of_all = np.empty((self._replicas if self._number == 0 else 0, len(sums)))
            self._link.peers.Gather(sums, of_all)
            if own is not None:
                model.parameters[:] = own
            if self._number == 0:
                self._post_evaluation(epoch, at, reduce(self._ready.figures.merged, of_all))
                self._send_values(parameters)

    def _post_evaluation(self, epoch: int, at: float, sums: np.ndarray) -> None:
        """Post the figures after an epoch, given the sums over all samples; the evaluation began at the time `at`."""
        if not self._lead.leads:
            return
        values = list(self._ready.figures.values(sums).values())
        self._link.reports.evaluated(EpochEvaluation(epoch, at, values))

    def _evaluate_pieces(self) -> int:
        """Evaluate pieces of the data until none are left, as `SandblasterWorker` computes gradients."""
        taken, status, sums = 0, self.status, self._sums()
        pieces = split(self._split.samples, PIECES * self._replicas)
        while True:
            # A late worker may find tickets of the next evaluation.
            number, piece = self._lead.share(lambda: divmod(self._link.evaluation.take_piece(), TICKETS))
            if piece >= len(pieces):
                return number
            if number != taken:
                taken = number
                status.figures["tests"] = number if self._lead.leads else 0
                status.figures["tested_samples"] = sums[...] = 0
                self._handler.fetch(self._model.parameters)
            part = pieces[piece]
            with status.test:
                sums[0] = self._ready.figures.merged(sums[0], self._evaluate(self._split, part))
            if not self._lead.leads:
                continue
            self._link.reports.post_sums(sums)
            status.figures["tested_samples"] += part.size
            self._link.reports.post(status.row, wake=True)

    def _evaluate_part(self, number: int) -> None:
        """Evaluate a worker's part of all splits at the final parameters: its own, or that of one that has ended."""
        self._handler.fetch(self._model.parameters)
        status, sums = self.status, self._sums()
        with status.test:
            for row, each in zip(sums, self._job.evaluated.values(), strict=True):
                row[:] = self._evaluate(each, split(each.samples, self._replicas)[number])
        if number != self._number:
            self._link.reports.post_part(sums, number)
            return
        if self._lead.leads and sums.size:
            self._link.reports.post_sums(sums)
        status.figures["state"] = State.DONE
        self._link.reports.post(status.row, wake=True)
        if self._number == 0:
            self._send_values(self._model.parameters)

    def _send_values(self, parameters: np.ndarray) -> None:
        """Send the coordinator what has been evaluated, if it takes that."""
        if self._placed.sends_values:
            self._link.reports.values(parameters)

    def _sums(self) -> np.ndarray:
        """Return memory for the sums over this worker's part of each split."""
        return np.zeros((len(self._job.evaluated), self._ready.figures.size))

    def _follow_orders(self) -> None:
        """Evaluate parts of the data when the coordinator orders it, until it orders the exit.

        These are the worker's own, and those of ranks that its process has taken over.
        """
        done, evaluated = Phase.TRAIN, set[int]()
        while done != Phase.EXIT:
            order = self._link.orders.read()
            if not self._job.algorithm.coordinated:
                self._engine.participant.obey_at_the_end(order)
            self._report_interruption()
            self._lend_model()
            parts = set(self._link.played) - evaluated if order.phase == Phase.EVALUATE else ()
            for number in sorted(parts):
                self._evaluate_part(number)
                evaluated.add(number)
            if order.phase == done and not parts:
                time.sleep(self._link.reports.interval(LOOK_EVERY))
            done = Phase(order.phase)
        if self.status.figures["state"] != State.DONE:
            # A signal has stopped the run: the parameters are what its checkpoint holds.
            self._handler.fetch(self._model.parameters)
