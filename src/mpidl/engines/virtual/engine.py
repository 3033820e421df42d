"""The engine that runs any number of replicas in one process, in seeded virtual time.

The arithmetic is real and only time is virtual: runs with the same seed are identical to the last bit. The engine is
the oracle of the tests and predicts the behaviour of a cluster; one replica without durations is the serial baseline.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import simpy
from msgspec import structs

from mpidl.algorithms.algorithm import Exchange
from mpidl.algorithms.coordination import Iteration
from mpidl.engines.totals import Learning, ShardCounts, Spent, Totals, all_logged
from mpidl.engines.virtual.cluster import VirtualCluster, VirtualReplica
from mpidl.engines.virtual.failures import FailureSimulation, RestartPoint
from mpidl.engines.virtual.handler import Hooks, Training, VirtualRequestHandler
from mpidl.engines.virtual.machines import Machines
from mpidl.engines.virtual.processes import ReplicaProcesses, Resumed, Supply
from mpidl.engines.virtual.sandblaster import VirtualSandblaster
from mpidl.engines.virtual.server import VirtualServer
from mpidl.engines.virtual.through_servers import VirtualThroughServers
from mpidl.engines.virtual.times import VirtualTime
from mpidl.engines.virtual.without_servers import VirtualByReduction, VirtualInMemory
from mpidl.shards.shard import Shard
from mpidl.shards.staleness import Histogram
from mpidl.shards.state import PARAMETERS
from mpidl.storage.position import ReplicaPosition, first_batches
from mpidl.topology.roles import Roles


class VirtualEngine:
    """A cluster in one process, whose replicas share the model of a `training`.

    The shards make up the parameter vector; there is only one if replicas share memory. By default nothing takes time.
    A run resumes from `state`, that of a coordinator's earlier `Iteration`, or from the `resumed` positions and vectors
    of replicas, after `taken` tickets. `totals` are the running totals without those of the shards.
    """

    def __init__(
        self,
        training: Training,
        shards: list[Shard],
        replicas: int,
        *,
        time: VirtualTime | None = None,
        hooks: Hooks | None = None,
        state: dict[str, Any] | None = None,
        resumed: Resumed | None = None,
        taken: int = 0,
    ) -> None:
        self._time, self._hooks = time or VirtualTime(), hooks or Hooks()
        self.shards = shards
        self._training, self._state = training, state
        self._algorithm, self._model, self._schedule = training.algorithm, training.model, training.schedule
        self.supply, self.totals = Supply(training.schedule, self._hooks.on_epoch, taken), Totals(0.0)
        self._accrued, self._paused, self._restarts = 0, 0.0, 0
        self._drawn_before = [sampler.drawn for sampler in training.samplers or ()]
        self._vectors = self._allocate(replicas)
        self._begin(resumed or {}, taken > 0)
        times = self._time.times
        self.course: FailureSimulation | None = None
        if times is not None and times.failures is not None:
            machines = self._cluster.machines
            assert machines is not None
            self.course = FailureSimulation(
                self, times.failures, machines.nodes, self._time.seed, self._hooks.on_event,
                coordinated=self._algorithm.coordinated,
            )  # fmt: skip

    def _begin(self, resumed: Resumed, in_turn: bool, at: float = 0.0, wasted: int = 0) -> None:
        """Make a cluster whose replicas begin at a time, in seconds of its environment.

        Those in `resumed` continue from their positions; `wasted` counts the batches whose gradients are lost.
        """
        time, times, replicas = self._time, self._time.times, len(self._vectors)
        environment = self._environment = simpy.Environment(at)
        ranks = len(self.shards) if self._algorithm.exchange.has_servers else 0
        seed = (time.seed, self._restarts) if self._restarts else time.seed
        machines = Machines(environment, times, seed, replicas, ranks) if times is not None else None
        servers = [VirtualServer(environment, shard) for shard in self.shards]
        clock = time.clock or (lambda: time.start + float(environment.now) + self._paused)
        self._cluster = VirtualCluster(environment, machines, servers, self._model.parameters.dtype, clock, self.totals)
        self.supply.begin(environment)
        self._cluster.on_applied = self._hooks.on_applied
        self._processes = ReplicaProcesses(
            self._cluster, self._training, self.supply, self._hooks, self._vectors, wasted
        )
        deaths = [death for death in (times.deaths if times is not None else ()) if death.at > at]
        self._processes.begin(self._make_handler(), resumed, in_turn, deaths)

    def _make_handler(self) -> VirtualRequestHandler:
        if self._algorithm.exchange is Exchange.REDUCTION:
            return VirtualByReduction(self._cluster)
        if self._algorithm.exchange is Exchange.SHARED_MEMORY:
            return VirtualInMemory(self._cluster, self._processes.gradient)
        if self._algorithm.coordinated:
            hooks = replace(self._hooks, on_iteration=self._iterated)
            return VirtualSandblaster(self._cluster, self._training, hooks, self._state, self._accrued)
        return VirtualThroughServers(self._cluster, self._algorithm, len(self._vectors), self._training.channel)

    def _allocate(self, replicas: int) -> list[np.ndarray]:
        """Return a vector of parameters for each replica."""
        own = self._model.parameters
        if self._algorithm.exchange is Exchange.SHARED_MEMORY:
            return [self.shards[0].parameters] * replicas
        if replicas == 1:
            return [own]
        # One block, which the kernel backs with large pages; rows begin on cache lines.
        block = np.empty((replicas, -(-own.size // 16) * 16), own.dtype)
        return [row[: own.size] for row in block]

    def _iterated(self, iteration: Iteration) -> bool:
        self._state, self._accrued = iteration.state, iteration.samples
        if self.course is not None:
            self.course.iterated(float(self._environment.now) + self._paused)
        return self._hooks.on_iteration(iteration)

    @property
    def replicas(self) -> list[VirtualReplica]:
        """All replicas, including those that have ended."""
        return self._cluster.replicas

    @property
    def servers(self) -> Sequence[VirtualServer]:
        """The servers, each with its shard."""
        return self._cluster.servers

    @property
    def roles(self) -> Roles | None:
        """The roles of the cluster's ranks; None if nothing takes time."""
        return self._cluster.machines.roles if self._cluster.machines is not None else None

    @property
    def now(self) -> float:
        """The time in seconds."""
        return self._cluster.clock()

    @property
    def load(self) -> float:
        """The load of the busiest network card, as `Machines.load`; 0 if nothing takes time."""
        return self._cluster.machines.load if self._cluster.machines is not None else 0.0

    def positions(self) -> list[ReplicaPosition]:
        """Return the positions of the replicas; the first one counts the batches and samples of all."""
        totals, first = self.totals, self.replicas[0]
        positions = [first.position(totals.batches - self._processes.wasted_batches, totals.samples - totals.again)]
        return positions + [replica.position(0, 0) for replica in self.replicas[1:]]

    def stop(self) -> None:
        """Let every replica end after its current batch."""
        for replica in self.replicas:
            replica.loader.stop()

    def run(self) -> Totals:
        """Run all replicas to their end and return the totals."""
        own = self._model.parameters
        if self.course is not None:
            self.course.run()
        self._environment.run()
        self._model.parameters = own
        for shard in self.shards:
            shard.apply_rest()
        return self.current_totals()

    def current_totals(self) -> Totals:
        """Return the totals so far, including those of the shards."""
        samplers = zip(self._training.samplers or (), self._drawn_before, strict=True)
        drawn = [each.drawn - before for each, before in samplers]
        return structs.replace(
            self.totals,
            now=self._cluster.clock(),
            spent=Spent(
                stopped=sum(replica.stopped.count for replica in self.replicas),
                saved_seconds=math.fsum(replica.stopped.saved_seconds for replica in self.replicas),
                busy_seconds=[server.busy_seconds for server in self._cluster.servers],
                samples=drawn,
            ),
            staleness=Histogram.total(shard.staleness for shard in self.shards),
            shards=ShardCounts.of(self.shards),
            learning=Learning.of(
                [shard.rate for shard in self.shards],
                [replica.state.rate for replica in self.replicas],
                [math.sqrt(replica.state.norm.square) for replica in self.replicas],
            ),
            logged=all_logged((name, *sums) for each in self.replicas for name, sums in each.state.logged.items()),
        )

    def settled_shards(self) -> Iterator[Shard]:
        """Yield the shards with all pushes under way applied, each valid until the next."""
        return (server.settled() for server in self._cluster.servers)

    def parameters(self, name: str = PARAMETERS) -> np.ndarray:
        """Return a copy of the shards' parameters, or of another of their vectors, as one vector of shape (size,)."""
        vector: np.ndarray = np.empty_like(self._model.parameters)
        self._cluster.collect(vector, name=name)
        return vector

    # Failures.

    def advance(self, until: float) -> bool:
        """Let time pass until a number of seconds after the beginning; return whether replicas are still at work."""
        environment, until = self._environment, until - self._paused
        while environment.peek() <= until < math.inf:
            environment.step()
        working = any(replica.active for replica in self.replicas)
        if working and until > environment.now:
            environment.run(until if until < math.inf else None)
        return working and until < math.inf

    def pause(self, seconds: float) -> None:
        """Let time pass without any work."""
        self._paused += seconds

    def die(self, replica: int) -> None:
        """Let a replica die, if it is at work; others take over what it has not pushed."""
        if self.replicas[replica].active:
            self.replicas[replica].process.interrupt()

    def delay(self, server: int, seconds: float) -> None:
        """Let a server apply no push for a time."""
        self._environment.process(self._cluster.servers[server].rest(seconds))

    def save(self) -> RestartPoint:
        """Return the state for a restart of the job, as in a checkpoint."""
        shards = [
            copy.copy() if copy is own else copy for own, copy in zip(self.shards, self.settled_shards(), strict=True)
        ]
        left = [part for replica in self.replicas for part in replica.unfinished()]
        firsts = first_batches([*left, *self.supply.given_back.values()])
        unpushed = [part for replica in self.replicas for part in replica.unpushed.parts]
        samples = self.totals.samples - self.totals.again - sum(self._schedule.samples(*part) for part in unpushed)
        batches = self.totals.batches - self._processes.wasted_batches
        batches -= sum(last - first for _, first, last in unpushed)
        owners = [replica.unpushed.own_position(replica.loader) for replica in self.replicas]
        return RestartPoint(
            shards, self.supply.tickets, sorted(firsts.items()), samples, batches, self._state, self._accrued, owners
        )

    def restart(self, saved: RestartPoint, at: float) -> None:
        """Restart all replicas from a saved state, a number of seconds after the beginning."""
        totals = self.totals
        totals.again = totals.samples - saved.samples
        for shard, copy in zip(self.shards, saved.shards, strict=True):
            shard.become(copy)
            shard.policy.expect_all()
        for sampler, position in zip(self._training.samplers or (), saved.owners, strict=False):
            sampler.resume(position)
        self._state, self._accrued = saved.state, saved.accrued
        self.supply.reset(saved.tickets, saved.left)
        self._restarts += 1
        self._begin({}, False, at - self._paused, totals.batches - saved.batches)
