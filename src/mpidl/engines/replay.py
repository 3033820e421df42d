"""Plays a recorded interleaving of a run on ranks again, in one process."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import numpy as np

from mpidl.algorithms.algorithm import Replica
from mpidl.algorithms.drive import drive
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push, Reduce
from mpidl.engines.training import Training
from mpidl.errors import MpidlError
from mpidl.shards.shard import Shard
from mpidl.storage.interleaving import Interleaving
from mpidl.wire import Differences, ErrorFeedback

#: Yields while a replica waits for others.
Process = Generator[None, None, Any]


class ReplayedServer:
    """A shard, the chunks on their way to it, and the fetches that read it between two arrivals.

    Parameters
    ----------
    shard : Shard
    arrivals : array (n,) of int64
        What was recorded; see `storage.interleaving.ServerRecord`.
    replicas : int
        Number of replicas.

    Attributes
    ----------
    mailboxes : list of deque
        For each replica, the arguments of `Shard.receive_chunk` that follow its number, in order.
    readers : Counter
        For each number of received chunks, the fetches that are still to read the shard then.
    """

    def __init__(self, shard: Shard, arrivals: np.ndarray, replicas: int) -> None:
        self.shard, self.part = shard, slice(*shard.range)
        self.arrivals = deque(arrivals.tolist())
        self.mailboxes: list[deque[tuple[int, int, np.ndarray, tuple[int, int]]]] = [deque() for _ in range(replicas)]
        self.readers: Counter[int] = Counter()

    def advance(self) -> int:
        """Receive what comes next, up to a fetch that is still to read the shard; return how much was received."""
        before = len(self.arrivals)
        while self.arrivals and not self.readers[self.shard.received]:
            worker = self.arrivals[0]
            if worker < 0:
                self.shard.remove_worker(-1 - worker)
            elif self.mailboxes[worker]:
                self.shard.receive_chunk(worker, *self.mailboxes[worker].popleft())
            else:
                break
            self.arrivals.popleft()
        return before - len(self.arrivals)


class ReplayedReplica:
    """A replica, the record of its batches and fetches, and what it waits for.

    Parameters
    ----------
    number : int
        The replica, from 0.
    state : ReplicaState
        What it keeps.
    batches : array (n, 2) of int64
    fetches : array (m, servers) of int64
        What was recorded; see `storage.interleaving.WorkerRecord`.

    Attributes
    ----------
    process : generator
        Runs the replica; yields while it waits.
    done : bool
        Whether the process has ended.
    portions : (int, int) or None
        The first and the last portion since the last push.
    fetched : list of int
        The clock of each shard at the last fetch.
    feedback : list of ErrorFeedback
        For each server, where pushes are encoded.
    copies : list of Differences
        For each server, where fetches are encoded.
    request : Reduce or None
        The reduction that it waits for.
    answer : int
        The answer to its last reduction.
    """

    def __init__(self, number: int, state: ReplicaState, batches: np.ndarray, fetches: np.ndarray) -> None:
        self.number, self.state = number, state
        self.batches: deque[list[int]] = deque(batches.tolist())
        self.fetches: deque[list[int]] = deque(fetches.tolist())
        self.process: Process
        self.done = False
        self.portions: tuple[int, int] | None = None
        self.fetched: list[int] = []
        self.feedback: list[ErrorFeedback] = []
        self.copies: list[Differences] = []
        self.request: Any = None
        self.answer = 0

    def read(self, number: int, parameters: np.ndarray) -> np.ndarray:
        """Return what arrives when the replica fetches the present parameters of a server."""
        if not self.copies:
            return parameters
        self.copies[number].fetch(parameters)
        return self.copies[number].values


class ReplayEngine:
    """Carries out the requests of replicas as they were on ranks: the same batches, arrivals and reads.

    A fetch may read a shard while it changes, which can't be recorded. In a deterministic run no fetch does, and the
    replay equals the run bit for bit.

    Parameters
    ----------
    training : Training
        The algorithm, the model and the data of the run.
    shards : list of Shard
        The run's shards, with the same chunks, as they were when the record began.
    interleaving : Interleaving
        The record.
    """

    def __init__(self, training: Training, shards: list[Shard], interleaving: Interleaving) -> None:
        algorithm = training.algorithm
        self._model, self._split, self._portions = training.model, training.split, training.schedule.portions
        self._wire, fetched = algorithm.encoding(), algorithm.fetch_encoding()
        replicas = len(interleaving.batches)
        arrivals = interleaving.arrivals or [np.empty(0, np.int64)] * len(shards)
        self._servers = [ReplayedServer(*pair, replicas) for pair in zip(shards, arrivals, strict=True)]
        self._actions: dict[type, Callable[[ReplayedReplica, Any], Process]] = {
            NextBatch: self._next_batch, Gradient: self._gradient, Push: self._push, Fetch: self._fetch,
            Reduce: self._reduce,
        }  # fmt: skip
        self._replicas = []
        self._gradients = self._progress = 0
        for number, records in enumerate(zip(interleaving.batches, interleaving.fetches, strict=True)):
            replica = ReplayedReplica(number, training.replica_state(), *records)
            for received in replica.fetches:
                for server, count in zip(self._servers, received, strict=True):
                    server.readers[count] += 1
            replica.feedback = [
                ErrorFeedback(self._wire, s.range.size, s.parameters.dtype, s.statistics) for s in shards if self._wire
            ]
            replica.copies = [
                Differences(fetched, np.empty_like(s.parameters), statistics=s.statistics) for s in shards if fetched
            ]
            requests = algorithm.replica(number, self.parameters(), replicas, replica.state)
            replica.process = self._play(replica, requests)
            self._replicas.append(replica)

    def parameters(self) -> np.ndarray:
        """Return a copy of the shards' parameters as one vector of shape (size,)."""
        return np.concatenate([server.shard.parameters for server in self._servers])

    def run(self) -> int:
        """Play the whole record and return the number of gradients.

        Raises
        ------
        MpidlError
            The record contradicts itself.
        """
        before = -1
        while self._progress > before:
            before = self._progress
            for replica in self._replicas:
                next(replica.process, None)
            for server in self._servers:
                self._progress += server.advance()
            self._meet()
        if not all(replica.done for replica in self._replicas) or any(server.arrivals for server in self._servers):
            raise MpidlError("the recorded interleaving contradicts itself: it is damaged or of another configuration")
        for server in self._servers:
            server.shard.apply_rest()
        return self._gradients

    def _play(self, replica: ReplayedReplica, requests: Replica) -> Process:
        yield from drive(requests, {kind: partial(action, replica) for kind, action in self._actions.items()})
        replica.done = True

    def _next_batch(self, replica: ReplayedReplica, request: NextBatch) -> Process:
        yield from ()
        self._progress += 1
        if not replica.batches:
            return None
        portion, number = replica.batches.popleft()
        replica.state.portion = portion
        replica.portions = (portion if replica.portions is None else replica.portions[0], portion)
        return self._portions.minibatches(portion)[number]

    def _gradient(self, replica: ReplayedReplica, request: Gradient) -> Process:
        yield from ()
        self._progress += 1
        self._gradients += 1
        self._model.parameters[:] = request.parameters
        batch = self._split.take(request.batch)
        replica.state.weight = batch.total
        return self._model.loss_and_gradient(batch)[1].copy()

    def _fetch(self, replica: ReplayedReplica, request: Fetch) -> Process:
        self._progress += 1
        unread = dict(enumerate(replica.fetches.popleft()))
        replica.fetched = [0] * len(self._servers)
        while unread:
            for number, count in tuple(unread.items()):
                server = self._servers[number]
                # The shard has received as many chunks as when it was read.
                if server.shard.received == count:
                    request.parameters[server.part] = replica.read(number, server.shard.parameters)
                    replica.fetched[number] = server.shard.clock
                    server.readers[count] -= 1
                    del unread[number]
            if unread:
                yield

    def _push(self, replica: ReplayedReplica, request: Push) -> Process:
        yield from ()
        self._progress += 1
        portions, replica.portions = replica.portions or (-1, -1), None
        for number, server in enumerate(self._servers):
            part = request.vector[..., server.part].copy()
            if self._wire is not None:
                replica.feedback[number].round_trip(part, server.shard.pieces[0].size, part)
            for chunk, piece in reversed([*enumerate(server.shard.pieces)]):
                values = part[..., piece.start : piece.stop]
                server.mailboxes[replica.number].append((chunk, replica.fetched[number], values, portions))

    def _reduce(self, replica: ReplayedReplica, request: Reduce) -> Process:
        self._progress += 1
        replica.request = request
        while replica.request is not None:
            yield
        return replica.answer

    def _meet(self) -> None:
        """Carry out a reduction if all replicas that are not done wait for it."""
        active = [replica for replica in self._replicas if not replica.done]
        if not active or not all(isinstance(replica.request, Reduce) for replica in active):
            return
        given = [replica.request for replica in active if replica.request.vector is not None]
        portion = max((replica.state.portion for replica in self._replicas), default=0)
        if given:
            weights = [request.weight for request in given] if given[0].mean else None
            for server in self._servers:
                parts = [request.vector[server.part] for request in given]
                server.shard.receive_sum(parts, weights, (portion, portion))
        for replica in active:
            if given:
                replica.request.parameters[:] = self.parameters()
            replica.answer, replica.request = len(given), None
        self._progress += 1
