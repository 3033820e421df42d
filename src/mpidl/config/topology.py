"""``[topology]``: the division of the work over the ranks, and checks that it suits the algorithm and the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from mpidl import schema
from mpidl.algorithms import Algorithm, Exchange
from mpidl.config.sections import Count, RunSection
from mpidl.errors import UsageError
from mpidl.partition.schedules import SCHEDULES
from mpidl.schema import Checked


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
    """

    servers: Count = 1
    partitions: Count = 1
    stages: Count = 1
    schedule: str = "one_forward_one_backward"
    micro_batches: Count | None = None
    transport: Literal["auto", "windows", "mixed", "messages"] = "auto"
    relay: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        schema.choose(SCHEDULES, "schedule", self.schedule)
        if self.stages == 1 and (self.micro_batches or 1) > 1:
            raise UsageError(f"micro_batches: {self.micro_batches}, but stages is 1, expected at least 2 stages")

    @property
    def messages(self) -> bool:
        """Whether nodes exchange by messages."""
        return self.transport != "windows"

    @property
    def pipeline(self) -> dict[str, Any]:
        """The schedule and the number of micro-batches, as arguments of cut models."""
        default = 4 * self.stages if self.stages > 1 else 1
        return {"schedule": self.schedule, "micro_batches": self.micro_batches or default}


def check_partitions(topology: TopologySection, algorithm: Algorithm) -> None:
    """Raise UsageError if the model is cut and the algorithm needs it whole."""
    if topology.partitions > 1 and algorithm.exchange is Exchange.SHARED_MEMORY:
        found = f"topology.partitions: {topology.partitions}"
        raise UsageError(f"{found}, but {algorithm.name}'s replicas share one whole vector, expected 1")


def check_relay(topology: TopologySection, algorithm: Algorithm, run: RunSection) -> None:
    """Raise UsageError if there are relays but the algorithm or the run needs the pushes of single workers."""
    if not topology.relay:
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
