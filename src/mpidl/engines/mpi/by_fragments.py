"""Reductions of fragments of the vector by MPI while the workers compute."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import RLock

import numpy as np
from mpi4py import MPI

from mpidl.algorithms.requests import FinishReduction, StartReduction
from mpidl.engines import monotonic
from mpidl.engines.mpi.request_handler import Contribution, ReducedCheckpoint, Reducing
from mpidl.engines.mpi.shard_collectives import ShardCollectives
from mpidl.parameters.ranges import Range
from mpidl.rma.sends import ProgressThread
from mpidl.rma.worker import WorkerLink
from mpidl.shards.shard import Shard, Snapshot
from mpidl.storage.position import ReplicaPosition
from mpidl.transport.protocol import Meeting, Order, Phase


class Fragment:
    """A fragment, this worker's shard of it, and the reduction of it that is under way.

    A reduction has the steps of `mpidl.engines.mpi.by_reduction.ByReduction`. Those of several fragments may be under
    way: their all-to-alls and their all-gathers have a communicator each, on which all workers begin them in the same
    order.

    `number` is that of this worker's shard. `shards` are those of the workers with the same slice of the vector,
    counted like `part`, the fragment, from the slice's beginning. `says` and `all` are the messages of this worker and
    of all workers with the reduction; see `Meeting`. `result` has the shape (part.size,). `applied` says whether the
    shard has been updated.
    """

    def __init__(self, number: int, shard: Shard, shards: Sequence[Range]) -> None:
        self.number, self.shard, self.snapshot = number, shard, Snapshot(shard)
        self.part = Range(shards[0].start, shards[-1].stop)
        self._shards = [each.shift(-self.part.start) for each in shards]
        self.says = np.zeros(len(Meeting), np.int64)
        self.all = np.zeros((len(shards), len(Meeting)), np.int64)
        own = shard.range.size
        # The parts that arrive are no longer needed when the result does.
        memory = np.empty(max(len(shards) * own, self.part.size), shard.parameters.dtype)
        self._received, self.result = memory[: len(shards) * own].reshape(-1, own), memory[: self.part.size]
        self.applied = False
        self._requests: list[MPI.Request] = []

    def bind(self, scattering: MPI.Intracomm, gathering: MPI.Intracomm) -> None:
        """Exchange with the workers of two communicators from now on."""
        self._scattering = scattering
        dtype = self.shard.parameters.dtype
        self._to_shards = ShardCollectives(scattering, self._shards, dtype)
        self._to_all = ShardCollectives(gathering, self._shards, dtype)

    def unbind(self) -> None:
        """Let go of the communicators."""
        for collectives in (self._to_shards, self._to_all):
            collectives.free()

    @property
    def given(self) -> list[int]:
        """The workers whose vectors count."""
        found: list[int] = np.flatnonzero(self.all[:, Meeting.GIVES]).tolist()
        return found

    def start(self, vector: np.ndarray) -> None:
        """Send every worker its shard of this worker's fragment, shape (part.size,), with this worker's message."""
        self.applied = False
        meeting = self._scattering.Iallgather(self.says, self.all)
        self._requests = [meeting, self._to_shards.start_scatter(vector, self._received)]

    def arrived(self, wait: bool = False) -> bool:
        """Return whether all messages under way have arrived; with `wait`, wait for them."""
        if wait:
            MPI.Request.Waitall(self._requests)
        return bool(MPI.Request.Testall(self._requests))

    def apply(self) -> None:
        """Update the shard by the mean of the vectors that count, if there are any, and start sending it to all."""
        given, weights = self.given, self.all.view(np.float64)[:, Meeting.WEIGHT]
        self.applied, self._requests = True, []
        if given:
            batch = int(self.all[:, Meeting.BATCH].max())
            parts = [self._received[worker] for worker in given]
            self.shard.receive_sum(parts, weights[given].tolist(), (batch, batch))
            self._requests = self._to_all.start_gather(self.shard.parameters, self.result)

    def gather(self, vector: np.ndarray) -> None:
        """Gather the present shards of the fragment into a vector, shape (part.size,)."""
        self._to_all.gather(self.shard.parameters, vector)


class FragmentsCheckpoint(ReducedCheckpoint):
    """The shards as the reduction that brought an order left them: it is obeyed when that one is finished.

    `lock` is held while shards are updated or copied.
    """

    def __init__(self, fragments: Sequence[Fragment]) -> None:
        super().__init__()
        self._fragments, self._copied, self.lock = fragments, 0, RLock()

    def cut(self, order: int, number: int, position: ReplicaPosition) -> Contribution:
        with self.lock:
            self.copy(order)
        shards = {each.number: (each.shard.range, each.snapshot.copy.on_host()) for each in self._fragments}
        return Contribution({number: position}, shards)

    def copy(self, order: int) -> None:
        """Copy the shards for an order, unless that has been done."""
        if order > self._copied:
            self._copied = order
            for fragment in self._fragments:
                fragment.snapshot.begin(())


class ByFragments(Reducing):
    """A worker's part in the reductions of fragments.

    They advance between batches or, if MPI supports several threads, while the worker computes. So a shard may be
    updated before the worker's replica finishes the reduction. A checkpoint has the updates of the reductions that the
    replicas have finished: the first worker announces an order with a reduction, the shards are copied when that
    reduction has updated them, and the order is obeyed when the replicas have finished it.

    `fragments` make up the worker's slice of the vector.
    """

    def __init__(self, fragments: Sequence[Fragment], evaluate: Callable[[int, np.ndarray], None]) -> None:
        self._orders = FragmentsCheckpoint(fragments)
        super().__init__([fragment.shard for fragment in fragments], self._orders, evaluate)
        self.actions = {StartReduction: self._start, FinishReduction: self._finish}
        self._fragments = {fragment.part: fragment for fragment in fragments}
        self._under_way: deque[Fragment] = deque()
        self._lock = self._orders.lock
        self._thread: ProgressThread | None = None
        # The results of the reductions that are finished.
        self._latest = np.empty(fragments[-1].part.stop, fragments[0].shard.parameters.dtype)
        self._announced = self._orders.latest

    def bind(self, link: WorkerLink) -> None:
        super().bind(link)
        self._peers, self._communicators = link.peers, [link.peers.Dup(), link.peers.Dup()]
        for fragment in self._fragments.values():
            fragment.bind(*self._communicators)
        if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
            self._thread = ProgressThread(self._advance)

    def unbind(self) -> None:
        if self._thread is not None:
            self._thread.end()
        for fragment in self._fragments.values():
            fragment.unbind()
        for communicator in self._communicators:
            communicator.Free()

    def start(self, parameters: np.ndarray) -> None:
        """Gather all shards into `parameters`; the initial state is saved before the first reduction."""
        for fragment in self._fragments.values():
            fragment.gather(self._latest[slice(*fragment.part)])
        parameters[:] = self._latest
        numbers = np.zeros(2, np.int64)
        if self._peers.rank == 0:
            numbers[:] = self.lead.share(self._link.orders.read)[:2]
        self._peers.Bcast(numbers)
        self._orders.latest = self._announced = Order(int(numbers[0]), int(numbers[1]), Phase.TRAIN)
        self._orders.copy(self._announced.number)
        self.status.figures["first_fetch"] = monotonic.now()

    def fetch(self, parameters: np.ndarray) -> None:
        """Copy the results of the reductions that are finished."""
        np.copyto(parameters, self._latest)

    def progress(self) -> None:
        if self._under_way and self._thread is None:
            self._advance()

    def end_pushes(self) -> None:
        """Complete the reductions that a stopped replica has left, with all workers."""
        while self._under_way:
            self._complete_first()
        super().end_pushes()

    def _start(self, request: StartReduction) -> None:
        fragment = self._fragments[request.part]
        fragment.says[:] = request.weight > 0, self.epoch_over, 0, 0, self.unpushed.batch, 0, 0
        fragment.says.view(np.float64)[Meeting.WEIGHT] = request.weight
        self.epoch_over = 0
        if self._peers.rank == 0:
            if self._announced == self._orders.latest:
                # The previous order has been obeyed: the shards' copies are free.
                number, last, *_ = self.lead.share(self._link.orders.read)
                self._announced = Order(number, last, Phase.TRAIN)
            fragment.says[[Meeting.ORDER, Meeting.LAST]] = self._announced[:2]
        with self._lock:
            fragment.start(request.vector[slice(*request.part)])
            self._under_way.append(fragment)
        if self._thread is not None:
            self._thread.wake()

    def _finish(self, request: FinishReduction) -> int:
        fragment = self._complete_first()
        own, given = slice(*fragment.part), len(fragment.given)
        self._orders.reduced(fragment.all[0])
        self.unpushed.pushed(request.rest)
        if given:
            self._latest[own] = request.vector[own] = fragment.result
            self._count(int(fragment.says[Meeting.GIVES]), fragment.result.nbytes)
        epoch = int(fragment.all[:, Meeting.EPOCH].max())
        if epoch:
            self._evaluate(epoch, self._latest)
        return given

    def _advance(self) -> bool:
        """Advance the reductions under way; return whether any has not arrived."""
        with self._lock:
            for fragment in self._under_way:
                if not fragment.arrived():
                    if not fragment.applied:
                        return True
                elif not fragment.applied:
                    self._apply(fragment)
            return not all(fragment.arrived() for fragment in self._under_way)

    def _apply(self, fragment: Fragment) -> None:
        fragment.apply()
        self._orders.copy(int(fragment.all[0, Meeting.ORDER]))

    def _complete_first(self) -> Fragment:
        """Wait until the first reduction under way is complete."""
        with self.status.wait, self._lock:
            fragment = self._under_way.popleft()
            if self._thread is not None and self._thread.error is not None:
                raise self._thread.error
            fragment.arrived(wait=True)
            if not fragment.applied:
                self._apply(fragment)
                fragment.arrived(wait=True)
        return fragment
