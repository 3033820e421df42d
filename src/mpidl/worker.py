"""The role of a worker: one replica, driven by its algorithm, that also evaluates the model when an epoch is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from mpidl.engines.mpi import MpiEngine
from mpidl.evaluation import evaluate_split
from mpidl.parameters.ranges import split
from mpidl.rma.board import EVALUATION, NO_MORE, Desk, Phase, State
from mpidl.rma.fabric import Fabric

if TYPE_CHECKING:
    from mpidl.job import Job

#: Seconds between two looks at the coordinator's desk after training.
LOOK_EVERY = 1e-3


class Worker:
    """Trains one replica until there are no more data, then does what the coordinator's desk says.

    Parameters
    ----------
    job : Job
    fabric : Fabric
    number : int
        This worker's number.
    """

    def __init__(self, job: Job, fabric: Fabric, number: int) -> None:
        self._job, self._fabric, self._number = job, fabric, number
        self._workers = len(fabric.workers)
        self._interrupted = False
        self._engine = MpiEngine(
            fabric, number, job.model, job.dataset.train, job.schedule, self._ticket_source(), self._evaluate_epoch
        )
        # Reading the data and the first sight of them are no part of training.
        job.dataset.train.load()
        job.dataset.test.load()

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
        self._engine.run(algorithm.replica(self._number, parameters, self._workers))
        if self._interrupted:
            self._fabric.signals().fetch_add()
        self._engine.finish()
        self._follow_desk()

    def _evaluate_epoch(self, epoch: int) -> None:
        """Evaluate on the test data what the servers hold now, and post the result as that epoch's."""
        started = time.perf_counter()
        self._engine.row.post()
        result = np.zeros(1, EVALUATION)
        result["time"] = time.time()
        test, model = self._job.dataset.test, self._job.model
        own = model.parameters.copy()
        self._engine.fetch(model.parameters)
        loss, correct = evaluate_split(model, test, 0, test.samples)
        model.parameters[:] = own
        result["loss"], result["accuracy"] = loss / test.samples, correct / test.samples
        window, coordinator = self._fabric.window, self._fabric.roles.coordinator
        window.put(result, coordinator, "evaluations", epoch - 1)
        window.flush(coordinator)
        window.put(np.ones(1, np.int64), coordinator, "evaluated", epoch - 1)
        window.flush(coordinator)
        self._fabric.doorbells.ring(coordinator)
        self._engine.row.figures["evaluation_seconds"] += time.perf_counter() - started

    def _follow_desk(self) -> None:
        """Evaluate this worker's part of the test data when the coordinator says so, and stay until it says leave."""
        desk = np.zeros(len(Desk), np.int64)
        done = Phase.TRAIN
        while done != Phase.LEAVE:
            self._fabric.window.get(desk, self._fabric.roles.coordinator, "desk")
            self._fabric.window.flush(self._fabric.roles.coordinator)
            phase = Phase(int(desk[Desk.PHASE]))
            if phase == Phase.EVALUATE and done != Phase.EVALUATE:
                self._evaluate_part()
            elif phase == done:
                time.sleep(LOOK_EVERY)
            done = phase

    def _evaluate_part(self) -> None:
        self._engine.fetch(self._job.model.parameters)
        part = split(self._job.dataset.test.samples, self._workers)[self._number]
        row = self._engine.row
        loss, correct = evaluate_split(self._job.model, self._job.dataset.test, part.start, part.stop)
        row.figures["test_loss"], row.figures["test_correct"] = loss, correct
        row.figures["test_samples"], row.figures["state"] = part.size, State.DONE
        row.post(ring=True)
