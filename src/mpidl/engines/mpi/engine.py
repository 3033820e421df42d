"""Carries out a replica's requests on MPI ranks; a request handler exchanges parameters."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from math import isfinite
from typing import Any, Protocol

import numpy as np

from mpidl.algorithms.algorithm import Replica
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Clock, Gradient, NextBatch, Unit, WaitForEpoch
from mpidl.data.batch import Minibatch
from mpidl.data.dataset import Split
from mpidl.data.loader import Loader
from mpidl.data.sampling import PortionSampler
from mpidl.data.schedule import Schedule
from mpidl.engines.mpi.checkpoint_participant import CheckpointParticipant, Stopped
from mpidl.engines.mpi.group import Waiting
from mpidl.engines.mpi.request_handler import RequestHandler
from mpidl.engines.progress import StoppedGradients
from mpidl.launch.fault_points import fault_point
from mpidl.nn.model import GivenUp, PlacedModel
from mpidl.rma.worker import WorkerLink
from mpidl.transport.protocol import STOPPED, State

#: Seconds between two posts of a worker's status, if workers are few.
POST_EVERY = 0.1
#: Seconds between two looks of a gradient that is slowed down, if it may be given up.
LOOK_EVERY = 1e-3


class TicketSource(Protocol):
    """A worker's source of tickets for portions."""

    def ask(self) -> bool:
        """Request a ticket in the background, for `take` to return; return whether that is possible."""
        ...

    def take(self) -> int:
        """Take a ticket for a portion, or the one that was requested."""
        ...


class WorkerHooks(Protocol):
    """Decisions of the worker's role. `tickets` are taken from its own source."""

    tickets: TicketSource

    def epoch_over(self, epoch: int) -> None:
        """Act on the end of an epoch (from 1); called on the first worker beyond it."""

    def between_batches(self) -> None:
        """Act between two batches."""

    def diverged(self) -> None:
        """Act on a loss that is NaN or infinite."""

    def computing(self) -> AbstractContextManager[Any]:
        """Return a context for the gradient of one batch, in which no other rank is waited for."""
        ...

    def delay(self, seconds: float) -> float:
        """Return the seconds to sleep after a gradient that took `seconds`."""
        ...


class MpiEngine:
    """Runs one replica, with its data, its model and its exchange of parameters.

    `split` has the training data. `handler` carries out the requests of the algorithm's exchange, and `state` is the
    replica's between steps. `resumed` has the portions that the replica had taken, each with its next batch, and
    `sampler` draws its samples, by default from all.
    `participant`, the worker's part in checkpoints, is set before `bind`.
    """

    participant: CheckpointParticipant

    def __init__(
        self,
        model: PlacedModel,
        split: Split,
        schedule: Schedule,
        handler: RequestHandler,
        state: ReplicaState,
        hooks: WorkerHooks,
        resumed: Sequence[tuple[int, int]] = (),
        sampler: PortionSampler | None = None,
    ) -> None:
        self.model, self.split, self.schedule, self.handler = model, split, schedule, handler
        handler.unpushed.number = schedule.number
        self.state, self._hooks = state, hooks
        self.loader = Loader(
            schedule, split, self._take_ticket, hooks.epoch_over, resumed, prepare=True, ask=self._ask_for_ticket,
            sampler=sampler,
        )  # fmt: skip
        self.status = handler.status
        self._posted = 0.0
        self._stopped = StoppedGradients()
        self._actions: dict[type, Callable[[Any], Any]] = {
            Gradient: self._gradient,
            WaitForEpoch: self._wait_for_epoch,
            Clock: self._wait_for_clock,
            **handler.actions,
        }

    def bind(self, link: WorkerLink) -> None:
        """Reach the other ranks by `link` from now on."""
        self._link, self._waiting = link, Waiting(link, self.status)
        self._post_every = link.reports.interval(POST_EVERY)
        self.status.bind(link.crowded)
        self.handler.lead.bind(link, self.status)
        self.handler.bind(link)
        self.participant.bind(link, self._waiting.until)
        link.clocks.show(self.participant.clock)

    def run(self, replica: Replica) -> None:
        """Carry out a replica's requests until it ends or must stop, and all its pushes have been applied."""
        answer, status = None, self.status
        status.figures["state"] = State.WORKING
        try:
            while True:
                with status.step:
                    request = replica.send(answer)
                    batch = self._next_batch(request) if isinstance(request, NextBatch) else None
                answer = batch if isinstance(request, NextBatch) else self._actions[type(request)](request)
                if isinstance(answer, Unit) and self.split.lookahead > 1:
                    for each in answer.batches:
                        self.split.prepare(each.indices, each.epoch)
        except (StopIteration, Stopped):
            replica.close()
        self._waiting.until(self.handler.applied)

    def announce_end(self) -> None:
        """Tell the other ranks that this replica is done."""
        self.handler.end_pushes()
        if self.handler.lead.leads:
            self._link.clocks.show(STOPPED)
        self.status.figures["state"] = State.TRAINED
        self._show_figures()
        self._link.reports.post(self.status.row, wake=True)

    def _show_figures(self) -> None:
        """Fill in what only the replica's state has."""
        figures = self.status.figures
        figures["rate"] = self.state.rate
        for place, (name, (total, count)) in enumerate(self.state.logged.items()):
            figures["logged"][place] = name.encode(), total, count

    def _next_batch(self, request: NextBatch) -> Minibatch | None:
        self._hooks.between_batches()
        self.participant.look()
        now = time.perf_counter()
        if now - self._posted > self._post_every:
            self._posted = now
            self._show_figures()
            self._link.reports.post(self.status.row)
            self.handler.post()
        self.handler.progress()
        with self.handler.checkpoint.changing:
            batch = self.loader.next()
            self.handler.unpushed.unused = int(batch is not None)
        if batch is not None:
            assert self.loader.current is not None
            self.state.portion = self.loader.current.portion
            self.handler.took(self.loader.current.portion, self.loader.done - 1)
            self.state.batch = self.handler.unpushed.batch
        return batch

    def _ask_for_ticket(self) -> bool:
        # Replicas that step together share the last portions evenly if each takes one when needed, and the ranks of a
        # cut one would have to agree whether a ticket is on its way.
        alone = not self.handler.checkpoint.together and self.handler.lead.partitions == 1
        return alone and self._hooks.tickets.ask()

    def _take_ticket(self) -> int:
        (ticket,) = self.handler.lead.share(lambda: (self._hooks.tickets.take(),))
        fault_point("ticket-taken")
        self.participant.took(ticket)
        return ticket

    def _gradient(self, request: Gradient) -> np.ndarray | None:
        status, figures, since = self.status, self.status.figures, time.perf_counter()
        before = figures["computing_seconds"]
        gradient: np.ndarray
        self.handler.late_by = request.late_by
        # The time includes that of its samples, unless they were prefetched.
        try:
            with self._hooks.computing(), status.gradient:
                batch = self.split.take(request.batch)
                if request.parameters is not self.model.parameters:
                    np.copyto(self.model.parameters, request.parameters)
                loss, gradient = request.function(self.model, batch)
        except GivenUp:
            self._give_up(since)
            return None
        pause = self._hooks.delay(time.perf_counter() - since)
        if pause > 0:
            with status.delay:
                self._sleep(pause)
        # A rank of a cut replica may not know yet what others know.
        if request.late_by is not None and not self.handler.lead.largest(int(not self.handler.late())):
            self._give_up(since)
            return None
        self._stopped.completed(time.perf_counter() - since)
        seconds = figures["computing_seconds"] - before
        figures["computing_squares"] += seconds * seconds
        figures["samples"] += len(request.batch.indices)
        figures["batches"] += 1
        summed, weight = self.model.loss_sums(loss, batch)
        figures["loss"] += summed
        figures["weight"] += weight
        self._count_in_epoch(self.loader.schedule.portions.epoch(self.state.portion), summed, weight)
        figures["bytes_moved"] = self.handler.lead.bytes_moved
        self.state.norm.look(gradient)
        figures["gradient_square"] = self.state.norm.square
        if not isfinite(loss):
            self._hooks.diverged()
        self.state.weight = batch.total
        self.handler.computed(float(loss) * batch.total, batch.total)
        fault_point("gradient-computed")
        return gradient

    def _count_in_epoch(self, epoch: int, loss: float, weight: float) -> None:
        """Add to the losses of an epoch; those of one long past count as part of no epoch."""
        figures, place = self.status.figures, epoch % 2
        if epoch > figures["epoch"][place]:
            figures["epoch"][place] = epoch
            figures["epoch_loss"][place] = figures["epoch_weight"][place] = 0.0
        if epoch == figures["epoch"][place]:
            figures["epoch_loss"][place] += loss
            figures["epoch_weight"][place] += weight

    def _give_up(self, since: float) -> None:
        """Let the last batch come again, whose gradient, begun `since`, is late."""
        if self.handler.late_by is not None:  # else a loop of the user's own has ended
            self._stopped.stop(time.perf_counter() - since)
            self.status.figures["stopped"] = self._stopped.count
            self.status.figures["saved_seconds"] = self._stopped.saved_seconds
        with self.handler.checkpoint.changing:
            self.loader.give_back()
            self.handler.unpushed.unused = 0

    def _sleep(self, seconds: float) -> None:
        """Sleep, and look meanwhile whether a gradient is late, as one that takes so long to compute would."""
        until = time.perf_counter() + seconds
        while (left := until - time.perf_counter()) > 0 and not self.handler.late():
            time.sleep(left if self.handler.late_by is None else min(left, LOOK_EVERY))

    def _wait_for_epoch(self, request: WaitForEpoch) -> None:
        taken = self.schedule.tickets_before(request.epoch)

        def over() -> bool:
            # The replica's state is complete while it waits.
            self.participant.look()
            self._hooks.between_batches()
            # If a replica ahead has ended, the data that it left remain.
            (found,) = self.handler.lead.share(
                lambda: (self._link.tickets.taken() >= taken or self._link.clocks.one_has_stopped(),)
            )
            return bool(found)

        self._waiting.until(over)

    def _wait_for_clock(self, request: Clock) -> None:
        self._waiting.until(self.handler.applied)
        self.participant.clock += 1
        # The pushes of all ranks of the replica have been applied; what they do next waits for their lead.
        self.handler.lead.largest(0)
        if self.handler.lead.leads:
            self._link.clocks.show(self.participant.clock)
            self._waiting.until(lambda: self._link.clocks.all_reached(self.participant.clock - request.bound))
