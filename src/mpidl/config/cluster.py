"""``[topology]``, the division of the work over the ranks, and ``[virtual]``, durations on a simulated cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from mpidl import schema
from mpidl.algorithms import Algorithm, Exchange
from mpidl.config.sections import RunSection
from mpidl.engines.virtual.times import Death, Distribution, Times, parse
from mpidl.errors import UsageError, quoted
from mpidl.partition.schedules import SCHEDULES
from mpidl.paths import measured_file, user_path
from mpidl.schema import Checked, Count, Natural, Positive
from mpidl.topology.roles import Roles, assign, check_number


@dataclass(frozen=True)
class TopologySection(Checked):
    """``[topology]``: the division of the work over the ranks. Ranks other than servers form the replicas.

    Attributes
    ----------
    servers : int
        Number of ranks that hold a part of the parameters each; ignored by algorithms without servers.
    partitions : int
        Number of ranks that share the model of each replica.
    stages : int
        Number of runs of consecutive layers into which a replica's model is cut. Each is computed by its share of the
        replica's ranks, and minibatches pass through them in micro-batches.
    schedule : {"gpipe", "one_forward_one_backward", "zero_bubble"}
        The order of micro-batches in a stage.
    micro_batches : int, optional
        Number of micro-batches in a minibatch; four for each stage if not given.
    transport : {"auto", "windows", "mixed", "messages"}
        Transport of pushes, fetches and counters: MPI windows; windows between the ranks of a node and messages
        between nodes ("mixed"); messages between any two ranks; or, by "auto", windows if all ranks are on one node,
        otherwise mixed.
    relay : bool
        Whether each node with at least two replicas, and without all servers, gets a relay: a rank that sends the sum
        of its workers' pushes to the servers, and fetches for all of them.
    survive : {"auto", "off"}
        Whether the run goes on where it can when a rank's process dies ("auto"): others of its node play its rank.
    standby : int
        Number of ranks that wait for work: a server's or the coordinator's, when its process dies.
    min_workers : int
        Least number of workers: if fewer processes of workers live, the run saves and fails.
    mirror : float, optional
        Seconds between checkpoints that are kept in the memory (``/dev/shm``) of two nodes, so that a job that starts
        again, without one of its nodes for instance, loses no more than that; none are made if not given.
    """

    servers: Count = 1
    partitions: Count = 1
    stages: Count = 1
    schedule: str = field(default="one_forward_one_backward", metadata={"keyword": "topology_schedule"})
    micro_batches: Count | None = field(default=None, metadata={"keyword": "topology_micro_batches"})
    transport: Literal["auto", "windows", "mixed", "messages"] = "auto"
    relay: bool = False
    survive: Literal["auto", "off"] = "auto"
    standby: Annotated[int, Meta(ge=0)] = 0
    min_workers: Count = 1
    mirror: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        schema.choose(SCHEDULES, "schedule", self.schedule)
        if self.stages > 1 and self.partitions == 1:
            raise UsageError(f"stages: {self.stages}, but partitions is 1, expected a multiple of {self.stages}")
        if self.stages == 1 and (self.micro_batches or 1) > 1:
            raise UsageError(f"micro_batches: {self.micro_batches}, but stages is 1, expected at least 2 stages")

    def assign(self, nodes: Sequence[int], servers: int, partitions: int | None = None) -> Roles:
        """Return the role of each rank, given its node and the number of servers; see `mpidl.topology.roles.assign`."""
        partitions = self.partitions if partitions is None else partitions
        roles = assign(nodes, servers, partitions, self.standby, self.relay)
        if (workers := len(roles.replicas) * partitions) < self.min_workers:
            raise UsageError(f"topology.min_workers: {self.min_workers}, but {len(nodes)} ranks have {workers} workers")
        return roles

    def check_ranks(self, ranks: int, servers: int) -> None:
        """Raise UsageError if there are too few ranks, or if some are sure to have no work wherever they are."""
        assign([0] * ranks, servers, self.partitions, self.standby)
        if not self.relay:  # The number of relays depends on the nodes.
            check_number(ranks - self.standby, servers, self.partitions)

    def check(self, algorithm: Algorithm, run: RunSection) -> None:
        """Raise UsageError if the topology is incompatible with the algorithm or the run."""
        if algorithm.makes_model:
            self.check_whole(f"but {algorithm.name} trains whole modules")
        if self.partitions > 1 and algorithm.exchange is Exchange.SHARED_MEMORY:
            found = f"topology.partitions: {self.partitions}"
            raise UsageError(f"{found}, but {algorithm.name}'s replicas share one whole vector, expected 1")
        if not self.relay:
            return
        found = "topology.relay: true, but"
        if algorithm.exchange is not Exchange.SERVERS:
            raise UsageError(f"{found} {algorithm.name} exchanges by {algorithm.exchange.value}, without pushes")
        if algorithm.max_staleness is not None:
            raise UsageError(f"{found} algorithm.max_staleness drops single pushes, expected false")
        if not algorithm.policy(1).sums:
            raise UsageError(f"{found} servers need single pushes of {algorithm.name}, expected false")
        if run.deterministic:
            raise UsageError(f"{found} run.deterministic is true and needs single pushes, expected false")

    def check_whole(self, because: str) -> None:
        """Raise UsageError unless each replica is one rank."""
        if self.partitions > 1:
            raise UsageError(f"topology.partitions: {self.partitions}, {because}, expected 1")

    def check_direct(self, because: str) -> None:
        """Raise UsageError unless each worker pushes to the servers itself."""
        if self.relay:
            raise UsageError(f"topology.relay: true, {because}, expected false")

    def alternatives(self) -> dict[str, TopologySection]:
        """Return topologies that differ in how workers reach the servers, by the key that chooses each."""
        return {"topology.relay": replace(self, relay=not self.relay)}

    @property
    def messages(self) -> bool:
        """Whether nodes exchange by messages."""
        return self.transport != "windows"

    @property
    def pipeline(self) -> dict[str, Any]:
        """The schedule and the number of micro-batches, as arguments of cut models."""
        default = 4 * self.stages if self.stages > 1 else 1
        return {"schedule": self.schedule, "micro_batches": self.micro_batches or default}


#: Seconds until the process of another rank plays one that has died: to notice it, and to bind its memory.
TAKEOVER = 0.1
#: Seconds from a failure that ends a job until all ranks train again; measured with 4 ranks on a loaded machine.
RESTART = 20.0


@dataclass(frozen=True)
class SlowReplica(Checked):
    """``[[virtual.slow]]``: a slow replica.

    Attributes
    ----------
    replica : int
        Number of the replica, from 0.
    factor : float
        Factor of the time of its gradients.
    """

    replica: Natural
    factor: Positive = 10.0


@dataclass(frozen=True)
class VirtualSection(Checked):
    """``[virtual]``: durations on a simulated cluster.

    Attributes
    ----------
    calibration : str, optional
        Directory of a real run, or a file of ``mpidl doctor --save``, with measurements for keys that aren't given
        here. What it doesn't have is taken from the user's own file, or else assumed.
    compute, latency, service : str or float, optional
        Seconds of a gradient, of a message between a replica and a server regardless of its size, and of a server's
        work on a push: a number, "constant:SECONDS", "jitter:MEAN:DEVIATION", "uniform:LOW:HIGH" or
        "exponential:MEAN".
    bandwidth : float, optional
        Bytes per second of a node's network card, in each direction, shared fairly by simultaneous messages. With
        `cores`, bytes per second of a copy.
    memory_bandwidth : float, optional
        Bytes per second between ranks of one node.
    ranks_per_node : int, optional
        Number of consecutive ranks on each node; each rank has its own node if not given.
    cores : int, optional
        Number of cores of one node that all ranks share; each rank has its own if not given.
    failures, node_failures : str or float, optional
        Seconds between two failures of a rank, and between two of a node, with which all of its ranks die: as above,
        "exponential:86400" for a failure a day. A failure without a takeover (`topology.survive`) ends the job,
        which starts again from the last checkpoint (`checkpoint.every`).
    restart : str or float
        Seconds from such a failure until all ranks train again.
    slow : tuple of SlowReplica
        ``[[virtual.slow]]``: slow replicas.
    death : tuple of Death
        ``[[virtual.death]]``: replicas that die, and may return.
    """

    calibration: str | None = None
    compute: str | float | None = None
    latency: str | float | None = None
    service: str | float | None = None
    bandwidth: Positive | None = None
    memory_bandwidth: Positive | None = None
    ranks_per_node: Count | None = None
    cores: Count | None = None
    failures: str | float | None = None
    node_failures: str | float | None = None
    restart: str | float = RESTART
    slow: tuple[SlowReplica, ...] = ()
    death: tuple[Death, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("compute", "latency", "service", "failures", "node_failures", "restart"):
            found = self.distribution(key)
            if "failures" in key and found is not None and found.mean <= 0:
                raise UsageError(f"{key}: {quoted(str(getattr(self, key)))}, expected more than 0 seconds on average")
        if self.ranks_per_node is not None and self.cores is not None:
            raise UsageError(
                f"ranks_per_node: {self.ranks_per_node}, can't be combined with cores, which is for one node"
            )

    def distribution(self, key: str) -> Distribution | None:
        """Return the distribution that a key describes; None if it isn't given."""
        found = getattr(self, key)
        return None if found is None else parse(str(found), key)

    def measurements(self) -> Path | None:
        """Return the file of ``mpidl doctor --save`` to take durations from, if any."""
        given = None if self.calibration is None else user_path(self.calibration)
        file = given if given is not None and given.is_file() else measured_file()
        return file if file.is_file() else None

    def times(self, replicas: int, measured: Times) -> Times:
        """Return the durations on a cluster of `replicas`; those that aren't given are `measured`.

        Raise UsageError if a section names a replica that doesn't exist.
        """
        for key, named in (("slow", self.slow), ("death", self.death)):
            for number in (each.replica for each in named):
                if number >= replicas:
                    raise UsageError(f"virtual.{key}: replica {number}, there are {replicas} (0 to {replicas - 1})")
        given = {key: self.distribution(key) for key in ("compute", "latency", "service")}
        given |= {key: getattr(self, key) for key in ("bandwidth", "memory_bandwidth", "ranks_per_node", "cores")}
        known: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        slow = {section.replica: section.factor for section in self.slow}
        return replace(measured, **known, slow=slow, deaths=self.death)
