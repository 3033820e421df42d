"""The state of one shard: its vectors, its clock and its counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from msgspec import Struct

from mpidl.device import to_host
from mpidl.parameters.ranges import Range, chunks, within
from mpidl.rules import Sgd
from mpidl.rules.segments import SegmentedRule, unfrozen
from mpidl.rules.tensors import TensorRule, WholeTensors
from mpidl.shards.scheduled_rule import Damping, ScheduledRule
from mpidl.shards.staleness import Histogram

#: Name of the vector that workers fetch.
PARAMETERS = "parameters"

#: Elements of several vectors that are processed at a time, so that they stay in the cache.
BLOCK = 1 << 14

#: Name of the state of `WholeTensors`.
STEPS = "steps"

#: Counters among the attributes of `ShardState`.
COUNTERS = ("clock", "begun", "pushes", "dropped", "batch")


class PushHeader(Struct, frozen=True):
    """The properties of a push, known from its first chunk on.

    Attributes
    ----------
    worker : int
        Number of the worker that sent it.
    ordinal : int
        Number of accepted pushes whose first chunk has arrived at the shard, including this one.
    fetched : int
        The shard's clock at the worker's fetch.
    staleness : int
        Number of updates between the worker's fetch and the arrival of the push.
    batches : (int, int)
        The numbers, in the run, of the first and the last minibatch that the push was computed on.
    """

    worker: int
    ordinal: int
    fetched: int
    staleness: int
    batches: tuple[int, int]


class ShardState:
    """The vectors of one range of the parameters with a clock and counters, as a policy sees them.

    Parameters
    ----------
    range : Range
        The shard's elements of the flat parameter vector.
    parameters : array, shape (range.size,)
        Their values, float32 or float64, changed in place.
    chunk : int
        Elements of a chunk. Pushes arrive in chunks; the last chunk may be shorter.
    state : mapping of str to array, optional
        The shard's other vectors by name, each like `parameters`: the rule's state and the vectors of operations. By
        default the rule's initial state. Of matrices it has rows, float64 (range.size, columns).
    clock : int
        Number of updates applied so far.

    Attributes
    ----------
    vectors : dict of str to array
        "parameters" and the current vectors of `state` by their names; `bind` replaces entries.
    pieces, statistics : list of Range
        The chunks, and the statistics, within the shard.
    chunks : int
        Number of chunks.
    begun, pushes, dropped : int
        Number of accepted pushes whose first chunk has arrived, of complete pushes, and of pushes that the policy has
        dropped.
    batch : int
        The number of the last minibatch that the push of the last chunk was computed on; it sets the rate.
    staleness : Histogram
        Staleness of the complete pushes.
    open : dict of int to PushHeader
        The pushes that have arrived in part, by their workers.
    on_drop : callable
        Called with the header of each push that the policy drops.
    block : int or None
        Best number of elements of several vectors to process at a time; None means all of them.
    """

    block: ClassVar[int | None] = BLOCK
    _adding = Sgd()

    def __init__(
        self,
        range: Range,
        parameters: Any,
        rule: ScheduledRule,
        chunk: int,
        *,
        state: Mapping[str, Any] | None = None,
        clock: int = 0,
    ) -> None:
        self.range, self.scheduled_rule = range, rule
        self._rule, self._rate_at = rule.rule, rule.rate_at
        if state is None:
            state = {} if rule.rule is None else dict(zip(rule.rule.states, rule.rule.init(parameters), strict=True))
        self.vectors: dict[str, Any] = {PARAMETERS: parameters, **state}
        self.clock = self.begun = clock
        self.pushes = self.dropped = 0
        self.batch = -1
        self.staleness = Histogram()
        self.on_drop: Callable[[PushHeader], None] = lambda push: None
        self._chunk_size, self.pieces = chunk, chunks(Range(0, range.size), chunk)
        self.chunks = len(self.pieces)
        self._slices = [slice(*piece) for piece in self.pieces]
        in_vector = [piece.shift(range.start) for piece in self.pieces]
        if rule.rule is not None:
            self._rules = [SegmentedRule(rule.rule, each, rule.statistics, rule.segments) for each in in_vector]
        self._tensors: WholeTensors | None = None
        if isinstance(rule.rule, TensorRule):
            self._tensors = WholeTensors(rule.rule, range, in_vector, rule.segments)
        self.statistics = within(rule.statistics, range)
        self._unfrozen = [unfrozen(rule.segments, each) for each in in_vector]
        self._damping = Damping(rule.statistics, in_vector, parameters)
        self.open: dict[int, PushHeader] = {}
        self._bound: set[str] = set()
        # Chunks that have changed since the last call of `settle`.
        self._changed: set[int] = set()
        self._cut()

    def _cut(self) -> None:
        """Cut the vectors that the rule updates into chunks."""
        states = () if self._rule is None else self._rule.states
        self._views = [(self.parameters[s], tuple(self.vectors[name][s] for name in states)) for s in self._slices]

    @property
    def parameters(self) -> Any:
        """The parameters, shape (range.size,)."""
        return self.vectors[PARAMETERS]

    def bind(self, memory: Mapping[str, np.ndarray]) -> None:
        """Move vectors into other memory, (range.size,) for each name, such as a window's, and copy their values there.

        Raise ValueError if the memory has another shape or dtype than the vector.
        """
        self.adopt({name: moved(self.vectors[name], array) for name, array in memory.items()})

    def adopt(self, memory: Mapping[str, np.ndarray]) -> None:
        """Continue with the vectors that lie in other memory already, (range.size,) for each name."""
        self.vectors.update(memory)
        self._bound.update(memory)
        self._cut()

    def unbind(self) -> None:
        """Move the vectors that `bind` has moved back into the shard's own memory."""
        for name in self._bound:
            self.vectors[name] = self.vectors[name].copy()
        self._bound.clear()
        self._cut()

    def chunk(self, number: int) -> Any:
        """Return one chunk of the parameters."""
        return self._views[number][0]

    def part(self, vector: Any, number: int) -> Any:
        """Return one chunk of a vector of the shard's length."""
        return vector[self._slices[number]]

    @property
    def rate(self) -> float:
        """The rule's rate for the push of the last chunk, or for the first before that; 0 without a rule."""
        return 0.0 if self._rule is None else self._rule.rate * self.rate_factor

    @property
    def rate_factor(self) -> float:
        """The factor of all rates for the push of the last chunk."""
        return self._rate_at(self.batch)

    def update(self, chunk: int, gradient: Any, ordinal: int, weight: float = 1.0) -> None:
        """Apply the rule to one chunk of the parameters, by a gradient of the chunk's size.

        The `ordinal` of the update counts from 1; `weight` is that of `mpidl.rules.Rule.update`.
        """
        parameters, state = self._views[chunk]
        self._rules[chunk].update(parameters, state, gradient, ordinal, self.rate, weight=weight)
        if self._tensors is None:
            self._changed.add(chunk)
        else:
            states = [self.vectors[name] for name in self._tensors.states]
            self._changed.update(self._tensors.arrived(chunk, self.parameters, states, self.rate * weight))

    def add(self, chunk: int, values: Any, factor: float = 1.0) -> None:
        """Add `factor` times `values`, shape (chunk's size,), to one chunk of the parameters, except to frozen ones."""
        parameters = self.chunk(chunk)
        self._changed.add(chunk)
        for part in self._unfrozen[chunk]:
            self._adding.update(parameters[part], (), values[part], 1, -factor)

    def assign(self, chunk: int, values: Any) -> None:
        """Replace one chunk of the parameters, except frozen ones, by `values`, shape (chunk's size,)."""
        parameters = self.chunk(chunk)
        self._changed.add(chunk)
        for part in self._unfrozen[chunk]:
            parameters[part] = values[part]

    def settle(self) -> None:
        """Note that what a push or a policy has changed is complete."""
        for chunk in self._changed:
            self.scheduled_rule.changed(self, chunk)
        self._changed.clear()

    def fingerprint(self) -> int:
        """Return the sum of the parameters' bits, by which changes show."""
        parameters = to_host(self.parameters)
        bits = parameters.view(f"u{parameters.itemsize}")
        return int(np.add.reduce(bits, dtype=np.uint64))

    def update_sparsely(self, gradient: Any, ordinal: int, batch: int, staleness: int) -> None:
        """Apply the rule to all parameters whose element of a gradient, shape (range.size,), is not 0.

        The gradient's elements for statistics are changed. The `ordinal` of the update counts from 1; `batch` is the
        number of the gradient's, and `staleness` counts the updates since its parameters were read.
        """
        self.batch = batch
        for chunk, (parameters, state) in enumerate(self._views):
            own = self.part(gradient, chunk)
            self._damping.damp(chunk, own, staleness)
            self._rules[chunk].update(parameters, state, own, ordinal, self.rate, sparse=True)

    def state(self) -> dict[str, Any]:
        """Return everything that the shard keeps between two chunks.

        Returns
        -------
        dict of str to array
            Vectors and matrices in the shard's own memory, as `saved_vectors`. Counters of int64: the attributes, the
            histogram of staleness, and the headers of open pushes.
        """
        headers = [
            (push.worker, push.ordinal, push.fetched, push.staleness, *push.batches) for push in self.open.values()
        ]
        return {
            **self.saved_vectors(),
            **{name: np.array(getattr(self, name), np.int64) for name in COUNTERS},
            **prefixed("staleness", self.staleness.state()),
            "open": np.array(headers, np.int64).reshape(-1, 6),
            **({} if self._tensors is None else {STEPS: self._tensors.state()}),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Copy the `state` of another shard with the same arguments and with vectors on the same device."""
        for name, vector in self.saved_vectors().items():
            vector[...] = state[name]
        for name in COUNTERS:
            setattr(self, name, int(state[name]))
        self.staleness.load(selected("staleness", state))
        if self._tensors is not None:
            self._tensors.load(state[STEPS])
        self.open.clear()
        for worker, ordinal, fetched, staleness, first, last in state["open"].tolist():
            self.open[worker] = PushHeader(worker, ordinal, fetched, staleness, (first, last))

    def drop(self, push: PushHeader) -> None:
        """Count a push that the policy drops."""
        self.dropped += 1
        self.on_drop(push)

    def saved_vectors(self) -> dict[str, Any]:
        """Return the vectors and the matrices by their names in a checkpoint, such as "rule/NAME" and "matrix/NAME"."""
        groups = {1: "rule", 2: "matrix"}
        return {
            name if name == PARAMETERS else f"{groups[vector.ndim]}/{name}": vector
            for name, vector in self.vectors.items()
        }


def moved(vector: np.ndarray, memory: np.ndarray) -> np.ndarray:
    """Copy a vector to `memory`, and return that."""
    if (memory.shape, memory.dtype) != (vector.shape, vector.dtype):
        found, expected = (f"{each.dtype} of shape {each.shape}" for each in (memory, vector))
        raise ValueError(f"memory for a shard's vector: {found}, expected {expected}")
    np.copyto(memory, vector)
    return memory


def prefixed(prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a part with the part's name before each of its names."""
    return {f"{prefix}/{name}": values for name, values in state.items()}


def selected(prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a part; the inverse of `prefixed`."""
    return {name.removeprefix(f"{prefix}/"): state[name] for name in state if name.startswith(f"{prefix}/")}
