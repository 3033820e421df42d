"""Plays a recorded interleaving of a run on ranks again, in one process."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpidl import wire
from mpidl.algorithms.algorithm import Algorithm
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push, Reduce
from mpidl.algorithms.steps import Steps
from mpidl.data.batch import Minibatch
from mpidl.data.dataset import Split
from mpidl.data.portions import Portions
from mpidl.errors import MpidlError
from mpidl.nn.model import Model
from mpidl.parameters.ranges import Range
from mpidl.shards.shard import Shard
from mpidl.storage.interleaving import Interleaving
from mpidl.wire import ErrorFeedback


class _Server:
    """A shard, what is on its way to it, and who read it between which arrivals."""

    def __init__(self, shard: Shard, arrivals: np.ndarray, replicas: int) -> None:
        self.shard, self.part = shard, slice(*shard.range)
        self.arrivals = deque(arrivals.tolist())
        self.mailboxes: list[deque[tuple[int, int, np.ndarray, tuple[int, int]]]] = [deque() for _ in range(replicas)]
        self.readers: Counter[int] = Counter()

    def advance(self) -> bool:
        """Receive what comes next, unless somebody is yet to read before; return whether anything came."""
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
        return len(self.arrivals) < before


class _Replica:
    """A replica, what is recorded of it, and what it waits for."""

    def __init__(self, algorithm: Algorithm, number: int, replicas: int, parameters: np.ndarray, steps: Steps) -> None:
        self.number, self.steps = number, steps
        self.generator = algorithm.replica(number, parameters, replicas, steps)
        self.portions: tuple[int, int] | None = None
        self.answer: Any = None
        self.request: Any = None
        self.done = False
        self.batches: deque[list[int]] = deque()
        self.fetches: deque[list[int]] = deque()
        self.unread: dict[int, int] = {}
        self.fetched: list[int] = []
        self.feedback: list[ErrorFeedback] = []


class ReplayEngine:
    """Carries out replicas' requests as they were on ranks: the same batches, arrivals and reads.

    What a fetch saw while a shard was being changed under it can't be recorded; in a deterministic run there is no
    such thing, and the replay is bitwise the run.

    Parameters
    ----------
    algorithm : Algorithm
    model : Model
    split : Split
    portions : Portions
    shards : list of Shard
        As the run had them, chunks included.
    interleaving : Interleaving
    rate_at, sparing
        Of the replicas' own steps; see `Steps`.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        model: Model,
        split: Split,
        portions: Portions,
        shards: list[Shard],
        interleaving: Interleaving,
        rate_at: Callable[[int], float] = lambda portion: 1.0,
        sparing: Sequence[Range] = (),
    ) -> None:
        self._model, self._split, self._portions = model, split, portions
        self._wire = wire.parse(algorithm.wire)
        replicas = len(interleaving.batches)
        arrivals = interleaving.arrivals or [np.empty(0, np.int64)] * len(shards)
        self._servers = [_Server(*pair, replicas) for pair in zip(shards, arrivals, strict=True)]
        self._replicas = []
        for number in range(replicas):
            replica = _Replica(algorithm, number, replicas, self.parameters(), Steps(rate_at, sparing))
            replica.batches.extend(interleaving.batches[number].tolist())
            replica.fetches.extend(interleaving.fetches[number].tolist())
            for received in replica.fetches:
                for server, count in zip(self._servers, received, strict=True):
                    server.readers[count] += 1
            replica.feedback = [
                ErrorFeedback(self._wire, s.range.size, s.parameters.dtype) for s in shards if self._wire
            ]
            self._replicas.append(replica)

    def parameters(self) -> np.ndarray:
        """Return a copy of what the shards hold, as one vector."""
        return np.concatenate([server.shard.parameters for server in self._servers])

    def run(self) -> int:
        """Play the whole record; return the number of gradients.

        Raises
        ------
        MpidlError
            The record contradicts itself.
        """
        gradients = 0
        moving = True
        while moving:
            moving = False
            for replica in self._replicas:
                while self._step(replica):
                    moving = True
                    gradients += isinstance(replica.request, Gradient)
            for server in self._servers:
                moving |= server.advance()
            moving |= self._meet()
        if not all(replica.done for replica in self._replicas) or any(server.arrivals for server in self._servers):
            raise MpidlError("the recorded interleaving contradicts itself: it is damaged or of another configuration")
        for server in self._servers:
            server.shard.apply_rest()
        return gradients

    def _step(self, replica: _Replica) -> bool:
        """Carry out a replica's next request; return False while it waits or when it is done."""
        if replica.done or isinstance(replica.request, Reduce):
            return False
        if replica.unread and not self._read(replica):
            return False
        try:
            replica.request = replica.generator.send(replica.answer)
        except StopIteration:
            replica.done, replica.request = True, None
            return False
        replica.answer = None
        match replica.request:
            case NextBatch():
                replica.answer = self._batch(replica)
            case Gradient(parameters, batch):
                self._model.parameters[:] = parameters
                replica.answer = self._model.loss_and_gradient(self._split.take(batch))[1].copy()
            case Push(vector):
                self._send(replica, vector)
            case Fetch():
                replica.unread = dict(enumerate(replica.fetches.popleft()))
                replica.fetched = [0] * len(self._servers)
        return True

    def _batch(self, replica: _Replica) -> Minibatch | None:
        if not replica.batches:
            return None
        portion, number = replica.batches.popleft()
        replica.steps.portion = portion
        replica.portions = (portion if replica.portions is None else replica.portions[0], portion)
        return self._portions.minibatches(portion)[number]

    def _read(self, replica: _Replica) -> bool:
        """Read the shards that have received as much as when they were read; return whether none is left."""
        for number, count in tuple(replica.unread.items()):
            server = self._servers[number]
            if server.shard.received == count:
                replica.request.parameters[server.part] = server.shard.parameters
                replica.fetched[number] = server.shard.clock
                server.readers[count] -= 1
                del replica.unread[number]
        return not replica.unread

    def _send(self, replica: _Replica, vector: np.ndarray) -> None:
        portions, replica.portions = replica.portions or (-1, -1), None
        for number, server in enumerate(self._servers):
            part = vector[server.part].copy()
            if self._wire is not None:
                replica.feedback[number].round_trip(part, server.shard.pieces[0].size, part)
            for chunk, piece in enumerate(server.shard.pieces):
                values = part[piece.start : piece.stop]
                server.mailboxes[replica.number].append((chunk, replica.fetched[number], values, portions))

    def _meet(self) -> bool:
        """Carry out a reduction if all replicas have come to it."""
        active = [replica for replica in self._replicas if not replica.done]
        if not active or not all(isinstance(replica.request, Reduce) for replica in active):
            return False
        given = [replica.request.vector for replica in active if replica.request.vector is not None]
        portion = max((replica.steps.portion for replica in self._replicas), default=0)
        if given:
            for server in self._servers:
                parts = [vector[server.part] for vector in given]
                server.shard.receive_sum(parts, active[0].request.mean, (portion, portion))
        for replica in active:
            if given:
                replica.request.parameters[:] = self.parameters()
            replica.answer, replica.request = len(given), None
        return True
