"""The interface between an algorithm and the engines."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, NamedTuple

from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.requests import Request
from mpidl.errors import UsageError, quoted
from mpidl.rules import Adagrad, Rule
from mpidl.schema import Checked, Natural
from mpidl.shards.policies import ApplyAtOnce, Policy, drop_above
from mpidl.wire import Wire, WithOrigin, parse

Replica = Generator[Request, Any, None]


class Exchange(Enum):
    """The kind of exchange of parameters, which determines the requests that replicas make."""

    SERVERS = "servers"
    REDUCTION = "reduction"
    SHARED_MEMORY = "shared memory"
    OPERATIONS = "operations"

    @property
    def has_servers(self) -> bool:
        """Whether servers have the shards."""
        return self in (Exchange.SERVERS, Exchange.OPERATIONS)


class Pattern(NamedTuple):
    """Properties of a replica's requests that engines can rely on, for instance to overlap exchanges with computation.

    Attributes
    ----------
    prefetches : bool
        Each `Fetch` begins the next one, and copies what the one before it began to fetch.
    fetches_next : bool
        After a `Push`, a `Fetch` of the replica's parameters is the next that reads or changes them or, unless it
        prefetches, that changes the vector. Each push is one update of the shards.
    pushes_gradients : bool
        After a `Gradient`, a `Push` of the unchanged answer comes next, and the answer doesn't change before a `Fetch`
        has followed. Shards treat it the same whenever it begins to arrive.
    only_reads : bool
        A `Fetch` precedes each `Gradient`, and the replica never changes its parameters itself. A single replica may
        then compute with the shards' own memory.
    repeatable : bool
        A push depends only on its batches and on parameters fetched before them: another replica can compute it from
        these batches.
    gives_up : bool
        A `Gradient` may be given up; no push may begin before its end.
    even : bool
        All replicas contribute alike in the long run, though they exchange with servers at their own speeds.
    """

    prefetches: bool = False
    fetches_next: bool = False
    pushes_gradients: bool = False
    only_reads: bool = False
    repeatable: bool = False
    gives_up: bool = False
    even: bool = False


class WarmStart(NamedTuple):
    """A run before an algorithm's own that trains its initial parameters."""

    algorithm: Algorithm
    rule: Rule
    epochs: int


def check_timing(algorithm: Algorithm, deterministic: bool, *keys: str) -> None:
    """Raise UsageError if a deterministic run has values of these keys whose effect depends on timing."""
    for key in keys:
        if deterministic and (value := getattr(algorithm, key)):
            found = str(value).lower()
            raise UsageError(f"algorithm.{key}: {found} depends on timing, which rules out run.deterministic = true")


@dataclass(frozen=True, kw_only=True)
class Algorithm(Checked):
    """The behaviour of a replica, the shards' policy for pushes, and the needs of a job.

    Subclasses are frozen dataclasses. Their fields are keys of ``[algorithm]`` in a configuration, besides the
    parameters below.

    Parameters
    ----------
    wire : str
        Format of pushes: "fp32" (not encoded), "bf16", "int8", "topk:FRACTION" or "onebit", as in `mpidl.wire`.
    wire_fetch : str
        Format of fetches, one of the same. All except "fp32" encode the difference between a shard and the worker's
        copy of it.
    max_staleness : int, optional
        Drop pushes with a larger staleness, and log their portions.

    Attributes
    ----------
    name : str
        The algorithm's name in a configuration.
    default_rule : Rule or None
        The shards' default rule. None if there is no choice of rule, because the policy alone determines the changes by
        a push.
    outer : bool
        Whether the shards' rule is an outer rule, whose rate a schedule doesn't change.
    coordinated : bool
        Whether a coordinator drives the run; models then keep no statistics, such as running means, among their
        parameters.
    makes_model : bool
        Whether the algorithm makes the layers; replicas then compute with them on one rank's CPU each.
    """

    name: ClassVar[str]
    default_rule: ClassVar[Rule | None] = Adagrad(0.01)
    outer: ClassVar[bool] = False
    coordinated: ClassVar[bool] = False
    makes_model: ClassVar[bool] = False

    wire: str = "fp32"
    wire_fetch: str = "fp32"
    max_staleness: Natural | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for settings out of bounds or incompatible with each other."""
        super().__post_init__()
        wires = {key: getattr(self, key) for key in ("wire", "wire_fetch")}
        encoded = [key for key, wire in wires.items() if parse(wire, key) is not None]
        if self.exchange is not Exchange.SERVERS and (encoded or self.max_staleness is not None):
            key = (*encoded, "max_staleness")[0]
            without = "without fetches" if key == "wire_fetch" else "without pushes"
            value = quoted(getattr(self, key))
            raise UsageError(f"{key}: {value}, {self.name} exchanges by {self.exchange.value}, {without}")

    @property
    def local_rule(self) -> Rule | None:
        """The rule of the replicas' own steps, if they choose one of `mpidl.rules`."""
        return None

    def check(self, deterministic: bool, rule: Rule | None) -> None:
        """Raise UsageError if the settings are incompatible with the run's, or with the shards' rule."""

    def check_replicas(self, replicas: int, deterministic: bool) -> None:
        """Raise UsageError if the settings are incompatible with the number of replicas."""

    @property
    def exchange(self) -> Exchange:
        """The kind of exchange of parameters."""
        return Exchange.SERVERS

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the requests of a replica, as a generator.

        Parameters
        ----------
        number : int
            The replica, from 0.
        parameters : array, shape (size,)
            The replica's own copy of the parameters, to compute gradients at, or the shared vector if replicas share
            memory. Without servers it has the current parameters at the start.
        replicas : int
            Number of replicas.
        state : ReplicaState
            The replica's state between two steps, and of its local steps.
        """
        raise NotImplementedError

    @property
    def streamed(self) -> int:
        """Number of fragments of the vector that replicas reduce one after another; 0 if they reduce it as a whole."""
        return 0

    def policy(self, replicas: int) -> Policy:
        """Return a new instance of the shards' policy for pushes."""
        return ApplyAtOnce()

    def shard_policy(self, replicas: int) -> Policy:
        """Return `policy`, which drops pushes with a staleness above `max_staleness`, if that is set."""
        policy = self.policy(replicas)
        return policy if self.max_staleness is None else drop_above(self.max_staleness, policy)

    def pattern(self, replicas: int) -> Pattern:
        """Return the properties of the replicas' requests that engines can rely on."""
        return Pattern()

    def encoding(self) -> Wire | None:
        """Return the encoding of pushes, if any."""
        encoding = parse(self.wire)
        return WithOrigin(encoding) if self.policy(1).compares else encoding

    def fetch_encoding(self) -> Wire | None:
        """Return the encoding of fetches, if any."""
        return parse(self.wire_fetch, "wire_fetch")

    def vectors(self) -> tuple[str, ...]:
        """Return the names of the shards' vectors besides the parameters and the rule's state."""
        return ()

    def warm_start_run(self) -> WarmStart | None:
        """Return the run before this algorithm's own, if there is one."""
        return None
