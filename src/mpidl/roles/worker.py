"""The role of a worker: one replica, driven by its algorithm, that also evaluates the model when an epoch is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from mpidl.algorithms import Exchange
from mpidl.algorithms.sandblaster import Sandblaster
from mpidl.algorithms.steps import Steps
from mpidl.engines.mpi import MpiEngine
from mpidl.engines.mpi.by_reduction import ByReduction
from mpidl.engines.mpi.in_memory import InMemory
from mpidl.engines.mpi.sandblaster.worker import EVALUATION as TICKETS
from mpidl.engines.mpi.sandblaster.worker import ByOperations, Notice
from mpidl.engines.mpi.through_servers import ThroughServers
from mpidl.nn.evaluation import evaluate_split
from mpidl.parameters.ranges import split
from mpidl.rma.counters import Counter
from mpidl.rma.status import EVALUATION, NO_MORE, Desk, Phase, State
from mpidl.rma.transport import Fabric
from mpidl.shards.shard import CHUNK_BYTES
from mpidl.storage.interleaving import WorkerRecord
from mpidl.storage.saving import Saving

if TYPE_CHECKING:
    from mpidl.job.job import Job

#: Seconds between two looks at the coordinator's desk after training.
LOOK_EVERY = 1e-3
#: Pieces of the test data for each worker, where those that are free evaluate them.
PIECES = 4


class Worker:
    """Trains one replica until there are no more data, then does what the coordinator's desk says.

    Parameters
    ----------
    job : Job
    fabric : Fabric
    number : int
        This worker's number.

    Attributes
    ----------
    record : WorkerRecord or None
        What it did, if the run is recorded.
    """

    def __init__(self, job: Job, fabric: Fabric, number: int) -> None:
        self._job, self._fabric, self._number = job, fabric, number
        self._workers = len(fabric.workers)
        self._interrupted = self._reported = False
        self._saving: Saving | None = None
        self._exchange = self._make_exchange()
        self._exchange.record = self.record = WorkerRecord() if job.config.run.record else None
        self._engine = MpiEngine(
            fabric, number, job.model, job.dataset.train, job.schedule, self._exchange,
            take=self._ticket_source(), on_epoch=self._epoch_over, between=self._between_batches,
            steps=Steps(job.rate_at, job.statistics), delay=job.config.debug.delay(number),
        )  # fmt: skip
        # Reading the data and the first sight of them are no part of training.
        job.dataset.train.load()
        job.dataset.test.load()

    def _make_exchange(self) -> ThroughServers | ByReduction | InMemory:
        job, fabric, number = self._job, self._fabric, self._number
        if job.algorithm.exchange is Exchange.SERVERS:
            return ThroughServers(fabric, number)
        if isinstance(job.algorithm, Sandblaster):
            return ByOperations(
                fabric, number, job.algorithm, job.schedule.portions, self._report_interruption, self._test
            )
        part = fabric.shards[number]
        row, checkpoints = fabric.row("servers", number), job.checkpoints
        if job.algorithm.exchange is Exchange.REDUCTION:
            shard = job.fill(part, np.empty(part.size, job.dtype), CHUNK_BYTES // job.dtype.itemsize)
            self._saving = Saving(shard, number, row, checkpoints)
            return ByReduction(fabric, number, shard, self._saving, self._evaluate_together)
        assert fabric.shared is not None
        parameters, *state = (vector[part.start : part.stop] for vector in fabric.shared.vectors)
        shard = job.fill(part, parameters, part.size, tuple(state))
        self._saving = Saving(shard, number, row, checkpoints)
        return InMemory(fabric, number, job, shard, self._saving)

    def _ticket_source(self) -> Callable[[], int]:
        """Return how this worker takes portions: from the shared counter or, in deterministic runs, in turn."""
        counter = self._fabric.tickets()
        if not self._job.config.run.deterministic:
            return counter.fetch_add
        own = iter(range(self._number, NO_MORE, self._workers))
        return lambda: max(next(own), counter.read())

    def interrupt(self) -> None:
        """Finish the batch in work and take no more."""
        self._interrupted = True
        self._engine.loader.stop()

    def run(self) -> None:
        """Run the replica to its end, and stay until the coordinator says leave."""
        algorithm, parameters = self._job.algorithm, self._job.model.parameters
        self._exchange.start(parameters)
        self._engine.run(algorithm.replica(self._number, parameters, self._workers, self._engine.steps))
        self._report_interruption()
        self._engine.announce_end()
        self._follow_desk()
        self._exchange.release_memory()
        self._job.copy_to_host()

    def _between_batches(self) -> None:
        self._report_interruption()
        if self._saving is not None:
            self._saving.advance()

    def _report_interruption(self) -> None:
        if self._interrupted and not self._reported:
            self._reported = True
            self._fabric.signals().fetch_add()

    def _epoch_over(self, epoch: int) -> None:
        """Evaluate now or, where all workers meet, when they do."""
        if isinstance(self._exchange, ByReduction):
            self._exchange.epoch_over = epoch
            return
        started = time.perf_counter()
        self._engine.row.post()
        at = time.time()
        test, model = self._job.dataset.test, self._job.model
        shared = isinstance(self._exchange, InMemory)
        own = None if shared else model.parameters.copy()
        self._exchange.fetch(model.parameters)
        loss, correct = evaluate_split(model, test, 0, test.samples)
        if own is not None:
            model.parameters[:] = own
        self._post_evaluation(epoch, at, loss / test.samples, correct / test.samples)
        self._engine.row.figures["evaluation_seconds"] += time.perf_counter() - started

    def _evaluate_together(self, epoch: int, parameters: np.ndarray) -> None:
        """Evaluate this worker's part of the test data, as all do at this moment."""
        started = time.perf_counter()
        self._engine.row.post()
        at = time.time()
        test, model, peers = self._job.dataset.test, self._job.model, self._fabric.peers
        assert peers is not None
        part = split(test.samples, self._workers)[self._number]
        own = None
        if parameters is not model.parameters:
            own = model.parameters.copy()
            model.parameters[:] = parameters
        sums = peers.allreduce(np.array(evaluate_split(model, test, part.start, part.stop)))
        if own is not None:
            model.parameters[:] = own
        if self._number == 0:
            self._post_evaluation(epoch, at, *(sums / test.samples))
        self._engine.row.figures["evaluation_seconds"] += time.perf_counter() - started

    def _post_evaluation(self, epoch: int, at: float, loss: float, accuracy: float) -> None:
        """Post the test loss and accuracy after an epoch, begun at the time `at`."""
        result = np.zeros(1, EVALUATION)
        result["time"], result["loss"], result["accuracy"] = at, loss, accuracy
        window, coordinator = self._fabric.window, self._fabric.roles.coordinator
        window.put(result, coordinator, "evaluations", epoch - 1)
        window.flush(coordinator)
        window.put(np.ones(1, np.int64), coordinator, "evaluated", epoch - 1)
        window.flush(coordinator)
        self._fabric.doorbells.ring(coordinator)

    def _follow_desk(self) -> None:
        """Evaluate this worker's part of the test data when the coordinator says so, and stay until it says leave."""
        desk = np.zeros(len(Desk), np.int64)
        done = Phase.TRAIN
        while done != Phase.LEAVE:
            self._fabric.window.get(desk, self._fabric.roles.coordinator, "desk")
            self._fabric.window.flush(self._fabric.roles.coordinator)
            phase = Phase(int(desk[Desk.PHASE]))
            if self._saving is not None:
                self._saving.obey(int(desk[Desk.ORDER]), int(desk[Desk.STEP]))
                self._saving.advance()
            if phase == Phase.EVALUATE and done != Phase.EVALUATE:
                self._evaluate_part()
            elif phase == done and not (self._saving is not None and self._saving.active):
                time.sleep(LOOK_EVERY)
            done = phase

    def _test(self, number: int) -> int:
        """Evaluate pieces of the test data, as many as others leave; see `ByOperations`."""
        test, row, taken = self._job.dataset.test, self._engine.row, 0
        pieces = split(test.samples, PIECES * self._workers)
        counter = Counter(self._fabric.window, self._fabric.roles.coordinator, "evaluation", Notice.PIECE)
        while True:
            # The counter may be at the next time already, when this worker comes late.
            number, piece = divmod(counter.fetch_add(), TICKETS)
            if piece >= len(pieces):
                return number
            if number != taken:
                taken = row.figures["tests"] = number
                row.figures["test_loss"] = row.figures["test_correct"] = row.figures["test_samples"] = 0
                self._exchange.fetch(self._job.model.parameters)
            part = pieces[piece]
            loss, correct = evaluate_split(self._job.model, test, part.start, part.stop)
            row.figures["test_loss"] += loss
            row.figures["test_correct"] += correct
            row.figures["test_samples"] += part.size
            row.post(ring=True)

    def _evaluate_part(self) -> None:
        self._exchange.fetch(self._job.model.parameters)
        part = split(self._job.dataset.test.samples, self._workers)[self._number]
        row = self._engine.row
        loss, correct = evaluate_split(self._job.model, self._job.dataset.test, part.start, part.stop)
        row.figures["test_loss"], row.figures["test_correct"] = loss, correct
        row.figures["test_samples"], row.figures["state"] = part.size, State.DONE
        row.post(ring=True)
