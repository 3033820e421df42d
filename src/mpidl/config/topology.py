"""``[topology]``: how the ranks share the work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from mpidl import schema
from mpidl.config.sections import Count
from mpidl.errors import UsageError
from mpidl.partition.schedules import SCHEDULES
from mpidl.schema import Checked


@dataclass(frozen=True)
class TopologySection(Checked):
    """``[topology]``: how the ranks share the work. The replicas are formed by the ranks that are not servers.

    Attributes
    ----------
    servers : int
        Number of ranks that hold the parameters, a part each; ignored by algorithms without servers.
    partitions : int
        Number of ranks that the model of each replica is cut over.
    stages : int
        Into how many runs of consecutive layers a replica's model is cut. Each is computed by its share of the
        replica's ranks, and minibatches pass through them in micro-batches.
    schedule : {"gpipe", "one_forward_one_backward", "zero_bubble"}
        The order in which a stage computes micro-batches.
    micro_batches : int, optional
        Into how many micro-batches a minibatch is divided; four for each stage if not given.
    transport : {"auto", "windows", "mixed", "messages"}
        How pushes, fetches and counters travel: through MPI windows; through windows between the ranks of a node and
        as messages between nodes ("mixed"); as messages between any two ranks; or, by "auto", through windows where
        all ranks are on one node, else mixed.
    relay : bool
        Whether one rank of each node that has not all servers, and at least two replicas, is its relay: it sends the
        servers the sum of what their workers push, and fetches for all of them.
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
        """The schedule and the number of micro-batches: arguments of models that are cut."""
        default = 4 * self.stages if self.stages > 1 else 1
        return {"schedule": self.schedule, "micro_batches": self.micro_batches or default}
