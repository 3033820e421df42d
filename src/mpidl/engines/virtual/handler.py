"""The interfaces of the virtual engine: to each kind of exchange, to what is beside its vectors, and to its caller."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy
from msgspec import Struct, field

from mpidl.algorithms.algorithm import Algorithm
from mpidl.algorithms.coordination import Iteration
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import LateBy
from mpidl.data.batch import Minibatch
from mpidl.data.dataset import Split
from mpidl.data.sampling import PortionSampler
from mpidl.data.schedule import Schedule
from mpidl.engines.virtual.cluster import VirtualCluster, VirtualReplica
from mpidl.engines.virtual.server import Load, Process
from mpidl.engines.virtual.traffic import Traffic
from mpidl.nn.model import PlacedModel
from mpidl.parameters import Layout


class VirtualSideChannel:
    """What virtual replicas exchange with servers beside their vectors; this base class exchanges nothing.

    Attributes
    ----------
    pushes : bool
        Whether pushes have anything beside their vectors.
    ahead : int
        Number of batches that replicas look at ahead.
    """

    pushes = False
    ahead = 0

    def begin(self, cluster: VirtualCluster, traffic: Traffic) -> None:
        """Begin anew in a cluster, through its traffic."""

    def bring(self, replica: VirtualReplica, batch: Minibatch, coming: Sequence[Minibatch]) -> Process:
        """Wait for the side data of a replica's batch, and begin to fetch those of the `coming` ones."""
        yield from ()

    def computing(self, replica: VirtualReplica) -> None:
        """Note that the model computes for a replica from now on."""

    def computed(self, replica: VirtualReplica) -> Process:
        """Wait for side data that only the computation of a gradient has asked for."""
        yield from ()

    def push(self, replica: VirtualReplica) -> Sequence[Load]:
        """Return the side data of a replica's next push for each server; empty if there are none."""
        return ()

    def show(self) -> None:
        """Let the model evaluate with the servers' present side data."""

    def vectors(self, replica: VirtualReplica) -> dict[str, np.ndarray]:
        """Return arrays, by name, with what a replica has not pushed yet, for a checkpoint."""
        return {}

    def load(self, replica: VirtualReplica, vectors: Mapping[str, np.ndarray]) -> None:
        """Let a replica continue with what `vectors` returned, among other arrays."""


#: Handles one request of a replica; the process returns the answer.
Action = Callable[[VirtualReplica, Any], Process]


class VirtualRequestHandler:
    """Handles the requests of one kind of exchange for all replicas, by an action for each type of request."""

    actions: Mapping[type, Action]
    #: Called with a replica that has waited for its pushes, and the time at which it began to.
    waited: Callable[[VirtualReplica, float], None] = staticmethod(lambda replica, since: None)

    def add_replica(self, replica: VirtualReplica) -> None:
        """Include a replica that has returned in what others wait for; by default they don't wait."""

    def wait_computed(self, replica: VirtualReplica, computed: simpy.Event, late_by: LateBy) -> Process:
        """Wait until a gradient has been computed; return whether it was, or False if it was given up as late."""
        yield computed
        return True

    def wait_applied(self, replica: VirtualReplica) -> Process:
        """Wait until everything that a replica has sent is applied; by default nothing is ever under way."""
        yield from ()

    def remove_replica(self, replica: VirtualReplica) -> Process:
        """Exclude a replica that has ended or died from what others wait for; by default they don't wait."""
        yield from ()


class Training(Struct, frozen=True):
    """An algorithm, the model with which it computes the gradients of all replicas, and the training data.

    `replica_state` returns the initial state of another replica. `channel` is what replicas exchange with servers
    beside their vectors. `samplers` draw the samples of each replica, by default from all. `layout` is that of the
    parameters, for coordinators that depend on it.
    """

    algorithm: Algorithm
    model: PlacedModel
    split: Split
    schedule: Schedule
    replica_state: Callable[[], ReplicaState] = ReplicaState
    channel: VirtualSideChannel = field(default_factory=VirtualSideChannel)
    samplers: Sequence[PortionSampler] | None = None
    layout: Layout | None = None


@dataclass(frozen=True)
class Hooks:
    """Functions that the virtual engine calls; by default they do nothing.

    Parameters
    ----------
    on_epoch : callable
        Called with an epoch's number (from 1) when the first portion beyond that epoch is taken.
    on_batch : callable
        Called without arguments before each batch or unit.
    on_event : callable
        Called as (kind, rank, role, **details) when a rank dies ("failure"), and when it returns, is taken over or
        starts again with all others ("recovery").
    on_divergence : callable
        Called as (replica, portion, loss) when the loss of a batch is NaN or infinite, except under a coordinator.
    on_request : callable, optional
        Called as (replica, request, start, end) when a request of a `VirtualReplica` has been carried out, and with
        None instead of the request when it has waited for its pushes.
    on_applied : callable
        Called as (shard, sender, fetched, clock, start, end) when a push has been applied: the number of the replica or
        intermediary that has sent it, the clocks at its fetch and before its application, and the times of that.
    on_iteration : callable
        Called with each `Iteration` of a coordinator; returns whether to stop.
    """

    on_epoch: Callable[[int], None] = lambda epoch: None
    on_batch: Callable[[], None] = lambda: None
    on_event: Callable[..., None] = lambda kind, rank, role, **details: None
    on_divergence: Callable[[int, int, float], None] = lambda replica, portion, loss: None
    on_iteration: Callable[[Iteration], bool] = lambda iteration: False
    on_request: Callable[[VirtualReplica, Any, float, float], None] | None = None
    on_applied: Callable[..., None] = lambda *about: None


def reported(
    action: Action, report: Callable[[VirtualReplica, Any, float, float], None], clock: Callable[[], float]
) -> Action:
    """Return an action that reports each request when it has been carried out, as `Hooks.on_request` says."""

    def carry_out(replica: VirtualReplica, request: Any) -> Process:
        started = clock()
        answer = yield from action(replica, request)
        report(replica, request, started, clock())
        return answer

    return carry_out
