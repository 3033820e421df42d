"""What the parts of the virtual engine share: the servers, the replicas, spare vectors and the totals."""

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
from mpidl.data.schedule import Assignment
from mpidl.engines.totals import Totals
from mpidl.engines.virtual.exchanger import Exchanger
from mpidl.engines.virtual.machines import Machines
from mpidl.engines.virtual.server import VirtualServer
from mpidl.parameters.ranges import Range
from mpidl.storage.position import ReplicaPosition


class VirtualReplica(Exchanger):
    """The state of one replica; see `Exchanger`.

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
    gradient : array or None
        Where its last gradient is kept until it is pushed.
    spare : array or None
        Where the fetch ahead arrives, if there is one.
    fetching : simpy.Event or None
        The fetch ahead.
    brought : bool
        Whether the parameters have what the next fetch ahead is to copy.
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
        super().__init__(number)
        self.parameters, self.loader, self.state = parameters, loader, state
        self.active = True
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
        return self.state.vectors() | self.encodings()

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
