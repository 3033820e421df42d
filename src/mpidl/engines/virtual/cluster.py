"""The shared state of the virtual engine: replicas and their encodings, servers, spare vectors and totals."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import simpy

from mpidl.algorithms.replica_state import ReplicaState
from mpidl.data.batch import Minibatch
from mpidl.data.loader import Loader
from mpidl.data.sampling import OwnPosition
from mpidl.data.schedule import Assignment
from mpidl.engines.totals import Totals
from mpidl.engines.virtual.machines import Machines
from mpidl.engines.virtual.server import VirtualServer
from mpidl.parameters.ranges import Range
from mpidl.shards.state import PARAMETERS
from mpidl.storage.position import ReplicaPosition
from mpidl.wire import Differences, ErrorFeedback, Wire


class Exchanger:
    """A replica, or an intermediary of several, which pushes to the servers and fetches from them.

    Replicas are numbered first, then intermediaries. It has the clock of each shard at the last fetch (`fetched`), the
    deliveries of its pushes that may still be under way (`unapplied`), and, by server, the fetches behind its last push
    (`following`).
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.fetched: list[int] = []
        self.unapplied: list[simpy.Process] = []
        self.following: dict[int, simpy.Process] = {}
        self._feedback: list[ErrorFeedback] = []
        self._residual: np.ndarray | None = None
        self._copies: dict[VirtualServer, Differences] = {}
        self._copy: np.ndarray | None = None

    def encodings(self) -> dict[str, np.ndarray]:
        """Return a copy of the encodings' state."""
        # Before its first push, a resumed replica has its saved residual.
        residual = np.concatenate([each.residual for each in self._feedback]) if self._feedback else self._residual
        copies = list(self._copies.values())
        begun = bool(copies) and all(each.begun for each in copies)
        copy = np.concatenate([each.values for each in copies]) if begun else self._copy
        kept = {"residual": residual, "copy": copy}
        return {name: vector for name, vector in kept.items() if vector is not None}

    def encode(self, wire: Wire, cluster: VirtualCluster, vector: np.ndarray, decoded: np.ndarray) -> list[int]:
        """Encode a vector, shape (size,) or (2, size), for servers of other nodes, and decode it again.

        Return the bytes of each server's part.
        """
        servers = cluster.servers
        if not self._feedback:
            self._feedback = [
                ErrorFeedback(wire, server.shard.range.size, vector.dtype, server.shard.statistics)
                for server in servers
            ]
            for server, feedback in zip(servers, self._feedback, strict=True):
                if self._residual is not None:
                    feedback.residual[:] = self._residual[server.part]
        sizes = []
        for number, (server, feedback) in enumerate(zip(servers, self._feedback, strict=True)):
            values, arriving = vector[..., server.part], decoded[..., server.part]
            # What an encoding has left out before is still to be pushed.
            if wire.rows > 1 or cluster.encodes(self.number, number) or feedback.residual.any():
                sizes.append(feedback.round_trip(values, server.shard.pieces[0].size, arriving))
            else:
                np.copyto(arriving, values)
                sizes.append(values.nbytes)
        return sizes

    def copy(self, wire: Wire, servers: list[VirtualServer], server: VirtualServer) -> Differences:
        """Return its copy of a server's shard, for fetches encoded by `wire`."""
        for each in () if self._copies else servers:
            parameters, kept = each.shard.parameters, self._copy
            values = np.empty_like(parameters) if kept is None else kept[each.part].astype(parameters.dtype)
            self._copies[each] = Differences(wire, values, kept is not None, each.shard.statistics)
        return self._copies[server]


class VirtualReplica(Exchanger):
    """The state of one replica.

    Parameters
    ----------
    number : int
        The replica, from 0.
    parameters : array, shape (size,)
        The vector at which it computes gradients.
    loader : Loader
        Its supply of minibatches.

    Attributes
    ----------
    active, died : bool
        `active` is False once it has ended or died.
    process : simpy.Process
        Runs the replica.
    gradient : array or None
        Its last gradient until it is pushed.
    spare : array or None
        Memory of the fetch ahead, if there is one.
    fetching : simpy.Event or None
        The fetch ahead.
    brought : bool
        Whether the parameters already have the values of the next fetch ahead.
    clock : float
        Steps done so far; infinite once it has ended.
    samples : int
        Samples that it has trained on.
    seconds : float
        Time of its gradients.
    loss, weight : float
        Sum of the batches' losses, each times the batch's weight, and sum of these weights so far; with a coordinator's
        units, those of the current one.
    unpushed : list of Assignment
        Batches taken since the last push.
    computing : Assignment or None
        The batch whose gradient is being computed.
    computed : list of float
        Durations of its gradients since the last call of `mean_seconds`.
    """

    def __init__(self, number: int, parameters: np.ndarray, loader: Loader, state: ReplicaState) -> None:
        super().__init__(number)
        self.parameters, self.loader, self.state = parameters, loader, state
        self.active, self.died = True, False
        self.samples, self.seconds = 0, 0.0
        self.process: simpy.Process
        self.gradient: np.ndarray | None = None
        self.spare: np.ndarray | None = None
        self.fetching: simpy.Event | None = None
        self.brought = False
        self.clock: float = 0
        self.loss = self.weight = 0.0
        self.unpushed: list[Assignment] = []
        self.computing: Assignment | None = None
        self.computed: list[float] = []
        self._tickets_before = 0

    def position(self, batches: int, samples: int) -> ReplicaPosition:
        """Return the position of the replica, which has computed `batches` batches and `samples` samples."""
        return ReplicaPosition(
            batches=batches,
            samples=samples,
            unpushed=[(part.portion, part.first, part.last) for part in self.unpushed],
            working=self.loader.unfinished(),
            tickets=self._tickets_before + self.loader.tickets,
            portion=self.state.portion,
            clock=int(self.clock) if self.clock < math.inf else 0,
            fetched=[[clock] for clock in self.fetched],
            counts=dict(self.state.counts),
            own=self.own_position(),
        )

    def own_position(self) -> OwnPosition | None:
        """Return how far it is in data of its own, if it has any."""
        return self.loader.own_position(0, sum(self.loader.schedule.samples(*part) for part in self.unpushed))

    def vectors(self) -> dict[str, np.ndarray]:
        """Return a copy of all vectors of the replica's state."""
        return self.state.vectors() | self.encodings()

    def load(self, position: ReplicaPosition, vectors: Mapping[str, np.ndarray], in_turn: bool) -> None:
        """Restore the position and `vectors` of another replica; the loader has its portions already."""
        self.state.load(vectors, position.counts, position.portion)
        self.clock = position.clock
        self.fetched = [clocks[0] for clocks in position.fetched]
        self.unpushed = [Assignment(*part) for part in position.unpushed]
        self._tickets_before = position.tickets if in_turn else 0
        self._residual, self._copy = vectors.get("residual"), vectors.get("copy")

    def next_batch(self) -> Minibatch | None:
        """Return the next batch, or None if there is none, and count it as not pushed yet."""
        batch = self.loader.next()
        current = self.loader.current
        if current is not None:
            self.state.portion = current.portion
            if batch is not None:
                self.state.batch = self.loader.schedule.number(current.portion, self.loader.done - 1)
                self.computing = Assignment(current.portion, self.loader.done - 1, self.loader.done)
                self.unpushed.append(self.computing)
        return batch

    def give_back(self) -> None:
        """Let the batch that is being computed come again."""
        self.loader.give_back()
        self.unpushed.pop()
        self.computing = None

    def batches(self) -> tuple[int, int]:
        """Return the numbers of the first and the last batch that are not pushed; -1 if there is none."""
        if not self.unpushed:
            return -1, -1
        first, last, number = self.unpushed[0], self.unpushed[-1], self.loader.schedule.number
        return number(first.portion, first.first), number(last.portion, last.last - 1)

    def pushed(self, rest: int = 0) -> tuple[int, int]:
        """Count all batches except the last `rest` as pushed; return the first and the last batch before that."""
        batches = self.batches()
        del self.unpushed[: len(self.unpushed) - rest]
        return batches

    def mean_seconds(self) -> float:
        """Return the mean duration of its gradients since the last call, 0 if there were none."""
        durations, self.computed = self.computed, []
        return math.fsum(durations) / len(durations) if durations else 0.0

    def unfinished(self) -> list[tuple[int, int]]:
        """Return the portions that it has taken and not pushed to their ends, each with its first such batch."""
        firsts: dict[int, int] = {}
        for portion, first in [*((part.portion, part.first) for part in self.unpushed), *self.loader.unfinished()]:
            firsts[portion] = min(first, firsts.get(portion, first))
        return sorted(firsts.items())

    def draw_again(self) -> None:
        """Draw what it has not pushed of its own data again, if it has any."""
        self.loader.sampler.resume(self.own_position())

    def unpushed_batches(self) -> list[Assignment]:
        """Return the batches whose gradients it has computed and not pushed."""
        return [part for part in self.unpushed if part is not self.computing]


class Spares:
    """Unused vectors of one dtype."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype
        self._free: defaultdict[tuple[int, ...], list[np.ndarray]] = defaultdict(list)

    def take(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return a vector of a shape, with undefined values."""
        free = self._free[shape]
        return free.pop() if free else np.empty(shape, self._dtype)

    def give(self, vector: np.ndarray) -> None:
        """Take a vector back."""
        self._free[vector.shape].append(vector)


class VirtualCluster:
    """The state of one virtual cluster: servers, replicas, spare vectors, and the run's totals without the shards'.

    Nothing takes time without `machines`. The `clock` returns the time of the totals, in seconds. `on_applied` is that
    of `mpidl.engines.virtual.handler.Hooks`.
    """

    def __init__(
        self,
        environment: simpy.Environment,
        machines: Machines | None,
        servers: list[VirtualServer],
        dtype: Any,
        clock: Callable[[], float],
        totals: Totals,
    ) -> None:
        self.on_applied: Callable[..., None] = lambda *about: None
        self.environment, self.machines, self.servers, self.clock = environment, machines, servers, clock
        self.replicas: list[VirtualReplica] = []
        self.spares = Spares(dtype)
        self.totals = totals

    def collect(self, vector: np.ndarray, within: Range | None = None, name: str = PARAMETERS) -> None:
        """Copy a vector of all shards, or of those within a range, into `vector`, shape (size,)."""
        for server in self.servers:
            if within is not None and server.shard.range.intersect(within) is None:
                continue
            part, own = vector[server.part], server.shard.vectors[name]
            if not np.may_share_memory(part, own):
                part[:] = own

    def encodes(self, exchanger: int, server: int) -> bool:
        """Return whether a wire format applies between an exchanger and a server: not within a node."""
        return self.machines is None or not self.machines.near(exchanger, server)

    def begin(self) -> None:
        """Record the time at which training begins; later calls do nothing."""
        self.totals.first_fetch = self.totals.first_fetch or self.clock()
