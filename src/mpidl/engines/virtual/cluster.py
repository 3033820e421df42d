"""What the parts of the virtual engine share: the servers, the replicas, spare vectors and the totals."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Mapping
from typing import Any

import numpy as np
import simpy

from mpidl.algorithms.replica_state import ReplicaState
from mpidl.data.batch import Minibatch
from mpidl.data.loader import Loader
from mpidl.data.schedule import Assignment
from mpidl.engines.totals import Totals
from mpidl.engines.virtual.machines import Machines
from mpidl.parameters.ranges import Range
from mpidl.shards.shard import Shard
from mpidl.storage.position import ReplicaPosition
from mpidl.wire import Differences, ErrorFeedback, Wire

#: A process of SimPy: yields the events that it waits for.
Process = Generator[simpy.Event, Any, Any]


class VirtualServer:
    """A shard and the queue of pushes in front of it.

    Parameters
    ----------
    environment : simpy.Environment
    shard : Shard

    Attributes
    ----------
    part : slice
        The shard's range in the whole vector.
    coming : dict of Any to tuple
        The arguments of `Shard.receive_push` for each push that is under way, in the order in which they were sent.
    last : dict of int to simpy.Process
        The last delivery of each replica: those of a replica don't overtake each other.
    busy_seconds : float
        Time that the server has worked so far.
    due : float
        When the shard's policy is to act on the time.
    """

    def __init__(self, environment: simpy.Environment, shard: Shard) -> None:
        self._environment = environment
        self.shard = shard
        self.part = slice(*shard.range)
        self.coming: dict[Any, tuple[int, int, np.ndarray, tuple[int, int]]] = {}
        self.last: dict[int, simpy.Process | None] = {}
        self.busy_seconds = 0.0
        self.due = math.inf
        self._serving = False
        self._queue: deque[simpy.Event] = deque()

    def turn(self) -> Process:
        """Wait until the server has applied every push that came earlier, and occupy it."""
        if self._serving:
            event = self._environment.event()
            self._queue.append(event)
            yield event
        self._serving = True

    def done(self) -> None:
        """Let the next push in the queue have its turn."""
        self._serving = False
        if self._queue:
            # A push that arrives at this very moment queues behind.
            self._serving = True
            self._queue.popleft().succeed()

    def settled(self) -> Shard:
        """Return the shard as it is when all pushes under way have arrived and all time has passed, maybe a copy."""
        if not self.coming and self.due == math.inf:
            return self.shard
        shard = self.shard.copy()
        for push in self.coming.values():
            shard.receive_push(*push)
        shard.look(math.inf)
        return shard


class VirtualReplica:
    """The state of one replica.

    Parameters
    ----------
    number : int
        The replica, from 0.
    parameters : array, shape (size,)
        The vector at which it computes gradients.
    loader : Loader
        Its supply of minibatches.
    state : ReplicaState
        What it keeps.

    Attributes
    ----------
    active : bool
        False once it has ended or died.
    process : simpy.Process
        Runs the replica.
    fetched : list of int
        The clock of each shard at the last fetch.
    gradient : array or None
        Where its last gradient is kept until it is pushed.
    early : bool
        Whether its last gradient left while it was computed.
    spare : array or None
        Where the fetch ahead arrives, if there is one.
    fetching : simpy.Event or None
        The fetch ahead.
    brought : bool
        Whether the parameters have what the next fetch ahead is to copy.
    unapplied : list of simpy.Process
        Deliveries of its pushes that may still be under way.
    following : dict of int to simpy.Process
        Fetches behind its last push, by the number of the server.
    clock : float
        Steps done so far; infinite once it has ended.
    loss, weight : float
        Sum of the batches' losses, each times the batch's weight, and sum of these weights so far; of the present unit
        where a coordinator asks for units.
    unpushed : list of Assignment
        Batches taken since the last push.
    computing : Assignment or None
        The batch handed out last, until its gradient is there.
    computed : list of float
        Durations of its gradients since `mean_seconds` was called last.
    """

    def __init__(self, number: int, parameters: np.ndarray, loader: Loader, state: ReplicaState) -> None:
        self.number, self.parameters, self.loader, self.state = number, parameters, loader, state
        self.active = True
        self.process: simpy.Process
        self.fetched: list[int] = []
        self.gradient: np.ndarray | None = None
        self.early = False
        self.spare: np.ndarray | None = None
        self.fetching: simpy.Event | None = None
        self.brought = False
        self.unapplied: list[simpy.Process] = []
        self.following: dict[int, simpy.Process] = {}
        self.clock: float = 0
        self.loss = self.weight = 0.0
        self.unpushed: list[Assignment] = []
        self.computing: Assignment | None = None
        self.computed: list[float] = []
        self._tickets_before = 0
        self._feedback: list[ErrorFeedback] = []
        self._residual: np.ndarray | None = None
        self._copies: dict[VirtualServer, Differences] = {}
        self._copy: np.ndarray | None = None

    def position(self, batches: int, samples: int) -> ReplicaPosition:
        """Return where the replica is, which has computed so many batches and samples."""
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
        )

    def vectors(self) -> dict[str, np.ndarray]:
        """Return a copy of all vectors that the replica keeps."""
        # Before its first push, a resumed replica has the residual that it had.
        residual = np.concatenate([each.residual for each in self._feedback]) if self._feedback else self._residual
        copies = list(self._copies.values())
        begun = bool(copies) and all(each.begun for each in copies)
        copy = np.concatenate([each.values for each in copies]) if begun else self._copy
        kept = {"residual": residual, "copy": copy}
        return self.state.vectors() | {name: vector for name, vector in kept.items() if vector is not None}

    def load(self, position: ReplicaPosition, vectors: Mapping[str, np.ndarray], in_turn: bool) -> None:
        """Go on where another replica was, whose `vectors` these are; it has been given the portions in work."""
        self.state.load(vectors, position.counts, position.portion)
        self.clock = position.clock
        self.fetched = [clocks[0] for clocks in position.fetched]
        self.unpushed = [Assignment(*part) for part in position.unpushed]
        self._tickets_before = position.tickets if in_turn else 0
        self._residual, self._copy = vectors.get("residual"), vectors.get("copy")

    def next_batch(self) -> Minibatch | None:
        """Return the next batch, or None if there is none, and note that its gradient is not pushed yet."""
        batch = self.loader.next()
        current = self.loader.current
        if current is not None:
            self.state.portion = current.portion
            if batch is not None:
                self.computing = Assignment(current.portion, self.loader.done - 1, self.loader.done)
                self.unpushed.append(self.computing)
        return batch

    def pushed(self, rest: int = 0) -> tuple[int, int]:
        """Note a push of all batches but the last `rest`; return the first and the last portion computed on before."""
        portions = (self.unpushed[0].portion, self.unpushed[-1].portion) if self.unpushed else (-1, -1)
        del self.unpushed[: len(self.unpushed) - rest]
        return portions

    def mean_seconds(self) -> float:
        """Return the mean duration of its gradients since the last call, 0 if there were none."""
        durations, self.computed = self.computed, []
        return math.fsum(durations) / len(durations) if durations else 0.0

    def taken(self) -> list[Assignment]:
        """Return all batches that the replica has taken and not pushed, computed or not."""
        current, ahead = self.loader.current, self.loader.ahead
        rest = [] if current is None else [Assignment(current.portion, self.loader.done, current.last)]
        return [part for part in [*self.unpushed, *rest, *([ahead] if ahead else [])] if part.first < part.last]

    def encode(self, wire: Wire, servers: list[VirtualServer], vector: np.ndarray, decoded: np.ndarray) -> int:
        """Send a vector through a wire format to all servers, and return the number of bytes it takes.

        Parameters
        ----------
        wire : Wire
        servers : list of VirtualServer
        vector : array, shape (size,) or (2, size)
        decoded : array like `vector`
            Overwritten with what arrives.
        """
        if not self._feedback:
            self._feedback = [
                ErrorFeedback(wire, server.shard.range.size, vector.dtype, server.shard.statistics)
                for server in servers
            ]
            for server, feedback in zip(servers, self._feedback, strict=True):
                if self._residual is not None:
                    feedback.residual[:] = self._residual[server.part]
        return sum(
            feedback.round_trip(vector[..., server.part], server.shard.pieces[0].size, decoded[..., server.part])
            for server, feedback in zip(servers, self._feedback, strict=True)
        )

    def copy(self, wire: Wire, servers: list[VirtualServer], server: VirtualServer) -> Differences:
        """Return what the replica has of a server's shard, where fetches are encoded by `wire`."""
        for each in () if self._copies else servers:
            parameters, kept = each.shard.parameters, self._copy
            values = np.empty_like(parameters) if kept is None else kept[each.part].astype(parameters.dtype)
            self._copies[each] = Differences(wire, values, kept is not None, each.shard.statistics)
        return self._copies[server]


class Spares:
    """Vectors of one dtype that nobody uses at the moment."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype
        self._free: defaultdict[tuple[int, ...], list[np.ndarray]] = defaultdict(list)

    def take(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return a vector of a shape whose values are undefined."""
        free = self._free[shape]
        return free.pop() if free else np.empty(shape, self._dtype)

    def give(self, vector: np.ndarray) -> None:
        """Take a vector back."""
        self._free[vector.shape].append(vector)


class VirtualCluster:
    """The state of one virtual cluster.

    Parameters
    ----------
    environment : simpy.Environment
    machines : Machines or None
        Let time pass. None: nothing takes time.
    servers : list of VirtualServer
    dtype : dtype
        The parameters' dtype.
    clock : callable
        Returns the time in seconds for the totals.

    Attributes
    ----------
    replicas : list of VirtualReplica
    spares : Spares
        Vectors of the parameters' dtype.
    totals : Totals
        The running totals, without what the shards count.
    """

    def __init__(
        self,
        environment: simpy.Environment,
        machines: Machines | None,
        servers: list[VirtualServer],
        dtype: Any,
        clock: Callable[[], float],
    ) -> None:
        self.environment, self.machines, self.servers, self.clock = environment, machines, servers, clock
        self.replicas: list[VirtualReplica] = []
        self.spares = Spares(dtype)
        self.totals = Totals(0.0)

    def collect(self, vector: np.ndarray, within: Range | None = None) -> None:
        """Copy the parameters of all shards, or of those within a range, into `vector`, shape (size,)."""
        for server in self.servers:
            if within is not None and server.shard.range.intersect(within) is None:
                continue
            part = vector[server.part]
            if not np.may_share_memory(part, server.shard.parameters):
                part[:] = server.shard.parameters

    def begin(self) -> None:
        """Note the time at which training begins; later calls do nothing."""
        self.totals.first_fetch = self.totals.first_fetch or self.clock()


class Signal:
    """An event that processes can wait for again and again.

    Attributes
    ----------
    next : simpy.Event
        The next announcement.
    """

    def __init__(self, environment: simpy.Environment) -> None:
        self._environment = environment
        self.next = environment.event()

    def announce(self, value: Any = None) -> None:
        """Let all that wait for `next` go on with `value`."""
        if self.next.callbacks:
            event, self.next = self.next, self._environment.event()
            event.succeed(value)
