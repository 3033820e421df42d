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
from mpidl.engines.progress import Encodings, StoppedGradients, UnpushedBatches
from mpidl.engines.totals import Totals
from mpidl.engines.virtual.machines import Machines
from mpidl.engines.virtual.server import VirtualServer
from mpidl.parameters.ranges import Range
from mpidl.shards.state import PARAMETERS
from mpidl.storage.position import ReplicaPosition, first_batches
from mpidl.wire import Wire


class Exchanger:
    """A replica, or an intermediary of several, which pushes to the servers and fetches from them.

    Replicas are numbered first, then intermediaries. It has the clock of each shard at the last fetch (`fetched`), the
    deliveries of its pushes that may still be under way (`unapplied`), and, by server, the fetches behind its last push
    (`following`).
    """

    def __init__(self, number: int, encodings: Encodings) -> None:
        self.number, self.encodings = number, encodings
        self.fetched: list[int] = []
        self.unapplied: list[simpy.Process] = []
        self.following: dict[int, simpy.Process] = {}

    def encode(self, wire: Wire, cluster: VirtualCluster, vector: np.ndarray, decoded: np.ndarray) -> list[int]:
        """Encode a vector, shape (size,) or (2, size), for servers of other nodes, and decode it again.

        Return the bytes of each server's part.
        """
        sizes = []
        for number, (server, feedback) in enumerate(zip(cluster.servers, self.encodings.feedback, strict=True)):
            values, arriving = vector[..., server.part], decoded[..., server.part]
            # What an encoding has left out before is still to be pushed.
            if wire.rows > 1 or cluster.encodes(self.number, number) or feedback.residual.any():
                sizes.append(feedback.round_trip(values, server.shard.pieces[0].size, arriving))
            else:
                np.copyto(arriving, values)
                sizes.append(values.nbytes)
        return sizes


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
    unpushed : UnpushedBatches
    stopped : StoppedGradients
    computed : list of float
        Durations of its gradients since the last call of `mean_seconds`.
    """

    def __init__(
        self, number: int, parameters: np.ndarray, loader: Loader, state: ReplicaState, encodings: Encodings
    ) -> None:
        super().__init__(number, encodings)
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
        self.unpushed = UnpushedBatches(loader.schedule.number)
        self.computed: list[float] = []
        self.stopped = StoppedGradients()
        self._tickets_before = 0

    def position(self, batches: int, samples: int) -> ReplicaPosition:
        """Return the position of the replica, which has computed `batches` batches and `samples` samples."""
        return self.unpushed.position(
            self.loader, self.state, self._tickets_before, batches=batches, samples=samples,
            clock=int(self.clock) if self.clock < math.inf else 0, fetched=[[clock] for clock in self.fetched],
        )  # fmt: skip

    def vectors(self) -> dict[str, np.ndarray]:
        """Return a copy of all vectors of the replica's state."""
        return self.state.vectors() | self.encodings.vectors()

    def load(self, position: ReplicaPosition, vectors: Mapping[str, np.ndarray], in_turn: bool) -> None:
        """Restore the position and `vectors` of another replica; the loader has its portions already."""
        self.state.load(vectors, position.counts, position.portion)
        self.clock = position.clock
        self.fetched = [clocks[0] for clocks in position.fetched]
        self.unpushed.load(position)
        self._tickets_before = position.tickets if in_turn else 0
        self.encodings.load(vectors)

    def next_batch(self) -> Minibatch | None:
        """Return the next batch, or None if there is none."""
        batch = self.loader.next()
        if batch is not None:
            assert self.loader.current is not None
            self.state.portion = self.loader.current.portion
            self.unpushed.took(self.state.portion, self.loader.done - 1)
            self.state.batch, self.unpushed.unused = self.unpushed.batch, 1
        return batch

    def give_back(self) -> None:
        """Let the batch that is being computed come again."""
        self.loader.give_back()
        self.unpushed.unused = 0

    def mean_seconds(self) -> float:
        """Return the mean duration of its gradients since the last call, 0 if there were none."""
        durations, self.computed = self.computed, []
        return math.fsum(durations) / len(durations) if durations else 0.0

    def unfinished(self) -> list[tuple[int, int]]:
        """Return the portions that it has taken and not pushed to their ends, each with its first such batch."""
        unpushed = [(portion, first) for portion, first, _ in self.unpushed.parts]
        return sorted(first_batches([*unpushed, *self.loader.unfinished(self.unpushed.unused)]).items())


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

    def encodings(self, wire: Wire | None, wire_fetch: Wire | None) -> Encodings:
        """Return the initial state of the encodings of pushes and fetches of one replica or intermediary."""
        shards = [server.shard for server in self.servers]
        statistics = [part.shift(shard.range.start) for shard in shards for part in shard.statistics]
        dtype = shards[0].parameters.dtype
        return Encodings.of([shard.range for shard in shards], dtype, wire, wire_fetch, statistics)

    def encodes(self, exchanger: int, server: int) -> bool:
        """Return whether a wire format applies between an exchanger and a server: not within a node."""
        return self.machines is None or not self.machines.near(exchanger, server)

    def begin(self) -> None:
        """Record the time at which training begins; later calls do nothing."""
        self.totals.first_fetch = self.totals.first_fetch or self.clock()
