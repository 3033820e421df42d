"""The interface between an algorithm and the engines."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, ClassVar, NamedTuple

from msgspec import Meta

from mpidl.algorithms.coordinator_requests import CoordinatorRequest
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Request
from mpidl.errors import UsageError, quoted
from mpidl.rules import Adagrad, Rule
from mpidl.schema import Checked
from mpidl.shards.policies import ApplyAtOnce, DropStale, Policy
from mpidl.wire import Wire, WithOrigin, parse

Replica = Generator[Request, Any, None]
Coordinator = Generator[CoordinatorRequest, Any, None]


class Exchange(Enum):
    """How replicas exchange parameters, and so which requests they make."""

    SERVERS = "servers"
    REDUCTION = "reduction"
    SHARED_MEMORY = "shared memory"
    OPERATIONS = "operations"


class Pattern(NamedTuple):
    """What holds for all requests of a replica, so that an engine can let exchanges overlap with computing.

    Attributes
    ----------
    prefetches : bool
        Each `Fetch` begins the next one, and copies what the one before it began to fetch.
    fetches_next : bool
        After a `Push`, a `Fetch` of the replica's parameters is the next that reads or changes them or, unless it
        prefetches, that changes the vector. Each push is one update of the shards.
    pushes_gradients : bool
        After a `Gradient`, a `Push` of the answer as it is comes next, and nothing of it changes before a `Fetch` has
        followed. Shards do the same with it whenever it begins to arrive.
    """

    prefetches: bool = False
    fetches_next: bool = False
    pushes_gradients: bool = False


class WarmStart(NamedTuple):
    """A run that comes before an algorithm's own and trains the parameters that it starts from."""

    algorithm: Algorithm
    rule: Rule
    epochs: int


def check_timing(key: str, value: object, deterministic: bool) -> None:
    """Raise UsageError if a run is to be deterministic and a key of its algorithm has a value that goes by timing."""
    if value and deterministic:
        found = str(value).lower()
        raise UsageError(f"algorithm.{key}: {found} depends on timing, which rules out run.deterministic = true")


@dataclass(frozen=True, kw_only=True)
class Algorithm(Checked):
    """What a replica does, what a shard does with a push, and what the algorithm needs of a job.

    Subclasses are frozen dataclasses. Their fields are the keys that ``[algorithm]`` takes in a configuration, besides
    the parameters below.

    Parameters
    ----------
    wire : str
        How pushes travel: "fp32" (as they are), "bf16", "int8", "topk:FRACTION" or "onebit"; see `mpidl.wire`.
    wire_fetch : str
        How fetches travel: the same formats. All but "fp32" encode the difference between a shard and what the worker
        has of it.
    max_staleness : int, optional
        Drop pushes that are staler; their portions are logged.

    Attributes
    ----------
    name : str
        The algorithm's name in a configuration.
    default_rule : Rule or None
        The shards' rule where a configuration names none. None if the algorithm leaves no choice of rule: its policy
        alone says what a push changes.
    outer : bool
        Whether the shards' rule is an outer rule, whose rate stays as it is when a schedule changes the others.
    takes_statistics : bool
        Whether it trains models that keep statistics, such as running means, among their parameters.
    """

    name: ClassVar[str]
    default_rule: ClassVar[Rule | None] = Adagrad(0.01)
    outer: ClassVar[bool] = False
    takes_statistics: ClassVar[bool] = True

    wire: str = "fp32"
    wire_fetch: str = "fp32"
    max_staleness: Annotated[int, Meta(ge=0)] | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for settings out of bounds, or that don't go together."""
        super().__post_init__()
        wires = {key: getattr(self, key) for key in ("wire", "wire_fetch")}
        encoded = [key for key, wire in wires.items() if parse(wire, key) is not None]
        if self.exchange is not Exchange.SERVERS and (encoded or self.max_staleness is not None):
            key = (*encoded, "max_staleness")[0]
            without = "without fetches" if key == "wire_fetch" else "without pushes"
            value = quoted(getattr(self, key))
            raise UsageError(f"{key}: {value}, {self.name} exchanges by {self.exchange.value}, {without}")

    def check(self, deterministic: bool, rule: Rule | None) -> None:
        """Raise UsageError if the algorithm's settings don't go with the run's, or with the shards' rule."""

    def check_replicas(self, replicas: int, deterministic: bool) -> None:
        """Raise UsageError if the settings don't go with so many replicas."""

    # Replicas and shards.

    @property
    def exchange(self) -> Exchange:
        """How replicas exchange parameters."""
        return Exchange.SERVERS

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return what replica `number` does, as a generator of requests.

        Parameters
        ----------
        number : int
            The replica, from 0.
        parameters : array, shape (size,)
            The replica's own copy of the parameters, to compute gradients at; the shared vector itself where the
            exchange is by shared memory. Without servers it holds the present parameters at the start.
        replicas : int
            Number of replicas.
        state : ReplicaState
            What the replica keeps between two steps, and the makings of its own steps.
        """
        raise NotImplementedError

    @property
    def only_reads(self) -> bool:
        """Whether a replica fetches its parameters before each gradient, and never changes them itself.

        One that is alone may then compute with the shards' own memory.
        """
        return False

    @property
    def streamed(self) -> int:
        """Number of fragments of the vector that replicas reduce one after another; 0: they reduce it whole."""
        return 0

    def policy(self, replicas: int) -> Policy:
        """Return what a shard does with the pushes it receives; each shard gets an instance of its own."""
        return ApplyAtOnce()

    def shard_policy(self, replicas: int) -> Policy:
        """Return `policy`, wrapped in `DropStale` where `max_staleness` is set."""
        policy = self.policy(replicas)
        return policy if self.max_staleness is None else DropStale(policy, self.max_staleness)

    def pattern(self, replicas: int) -> Pattern:
        """Return what engines can rely on about the requests of `replica`; by default nothing."""
        return Pattern()

    def encoding(self) -> Wire | None:
        """Return how pushes are encoded, or None where they travel as they are."""
        encoding = parse(self.wire)
        return WithOrigin(encoding) if self.policy(1).compares else encoding

    def fetch_encoding(self) -> Wire | None:
        """Return how fetches are encoded, or None where they travel as they are."""
        return parse(self.wire_fetch, "wire_fetch")

    def vectors(self) -> tuple[str, ...]:
        """Return the names of the vectors that every shard keeps beside the parameters and its rule's state."""
        return ()

    # A coordinator that drives the run.

    @property
    def coordinated(self) -> bool:
        """Whether a coordinator drives the run: replicas compute what it asks for, unit by unit."""
        return self.exchange is Exchange.OPERATIONS

    def coordinator(self, portions: int, state: dict[str, Any] | None = None) -> Coordinator:
        """Return what the coordinator does, as a generator of requests.

        Parameters
        ----------
        portions : int
            Number of portions of the training data.
        state : dict, optional
            State of an earlier `Iteration`, to resume from.

        Raises
        ------
        TypeError
            No coordinator drives this algorithm.
        """
        raise TypeError(f"{self.name} has no coordinator")

    @property
    def unit(self) -> int:
        """Number of portions that a replica takes at a time from a coordinator, and pushes together."""
        raise TypeError(f"{self.name} has no coordinator")

    @property
    def backups(self) -> bool:
        """Whether units that are outstanding near the end of a batch are handed out a second time."""
        return False

    def units(self, portions: int) -> int:
        """Return the largest number of units that an evaluation has, given the number of portions of the data."""
        return 0

    # Where a run starts.

    def warm_start_run(self) -> WarmStart | None:
        """Return the run that comes before this algorithm's own, if there is one."""
        return None

    def resumes(self, state: dict[str, Any] | None) -> bool:
        """Tell whether the algorithm resumes from a checkpoint whose coordinator saved `state`.

        If not, it starts anew from the checkpoint's parameters, which another algorithm may have trained.
        """
        return True
