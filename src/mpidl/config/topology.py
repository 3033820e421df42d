"""``[topology]``: the division of the work over the ranks, and checks that it suits the algorithm and the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from msgspec import Meta

from mpidl import schema
from mpidl.algorithms import Algorithm, Exchange
from mpidl.config.sections import RunSection
from mpidl.errors import UsageError
from mpidl.partition.schedules import SCHEDULES
from mpidl.schema import Checked, Count, Positive
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
