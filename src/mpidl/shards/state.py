"""The state of one shard: its vectors, its clock and its counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from mpidl.device import to_host
from mpidl.parameters.ranges import Range, chunks, within
from mpidl.rules import Sgd
from mpidl.rules.segments import SegmentedRule, unfrozen
from mpidl.shards.damping import Damping
from mpidl.shards.operations import PARAMETERS
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.staleness import Histogram

#: Elements of several vectors that are worked on at a time, so that they stay in the cache.
BLOCK = 1 << 14

#: Attributes of `ShardState` that count.
COUNTERS = ("clock", "begun", "pushes", "dropped", "portion")


@dataclass(frozen=True, slots=True)
class PushHeader:
    """What a shard knows about a push from its first chunk on.

    Attributes
    ----------
    worker : int
        Number of the worker that sent it.
    ordinal : int
        Number of pushes that have begun to arrive at the shard and are taken, this one included.
    fetched : int
        The shard's clock when the worker fetched.
    staleness : int
        Number of updates between the worker's fetch and the arrival of the push.
    portions : (int, int)
        The first and the last portion of the data that the push was computed on.
    """

    worker: int
    ordinal: int
    fetched: int
    staleness: int
    portions: tuple[int, int]


class ShardState:
    """The vectors of one range of the parameters with a clock and counters: what a policy acts on.

    Parameters
    ----------
    range : Range
        The shard's elements of the flat parameter vector.
    parameters : array, shape (range.size,)
        Their values, float32 or float64. The shard changes this array in place.
    rule : ScheduledRule
    chunk : int
        Elements of a chunk. Pushes arrive in chunks; the last chunk may be shorter.
    state : mapping of str to array, optional
        The shard's other vectors by name, each like `parameters`: the state of the rule and the vectors that operations
        work on. By default the rule's initial state.
    clock : int
        Number of updates that have been applied.

    Attributes
    ----------
    vectors : dict of str to array
        "parameters" and the vectors of `state` by their names, as they are now; `bind` replaces entries.
    pieces, statistics : list of Range
        The chunks, and what holds statistics, within the shard.
    chunk_size, chunks : int
        Elements of a chunk, and number of chunks.
    begun, pushes, dropped : int
        Number of pushes that have begun to arrive and are taken, that have arrived whole, and that the policy has left
        out.
    portion : int
        The last portion that the push of the last chunk was computed on; it sets the rate.
    staleness : Histogram
        Staleness of the pushes that have arrived whole.
    on_drop : callable
        Called with the header of each push that the policy leaves out.
    block : int or None
        Best number of elements of several vectors to work on at a time; None means all of them.
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
        self.rule, self._rate_at = rule.rule, rule.rate_at
        if state is None:
            state = {} if rule.rule is None else dict(zip(rule.rule.states, rule.rule.init(parameters), strict=True))
        self.vectors: dict[str, Any] = {PARAMETERS: parameters, **state}
        self.clock = self.begun = clock
        self.pushes = self.dropped = 0
        self.portion = -1
        self.staleness = Histogram()
        self.on_drop: Callable[[PushHeader], None] = lambda push: None
        self.chunk_size, self.pieces = chunk, chunks(Range(0, range.size), chunk)
        self.chunks = len(self.pieces)
        self._slices = [slice(*piece) for piece in self.pieces]
        in_vector = [piece.shift(range.start) for piece in self.pieces]
        if rule.rule is not None:
            of_range = partial(SegmentedRule, rule.rule, statistics=rule.statistics, segments=rule.segments)
            self._rules, self._rule_of_all = [of_range(each) for each in in_vector], of_range(range)
        self.statistics = within(rule.statistics, range)
        self._unfrozen = [unfrozen(rule.segments, each) for each in in_vector]
        self._damping = Damping(rule.statistics, in_vector, parameters)
        self._damping_of_all = Damping(rule.statistics, [range], parameters)
        self._open: dict[int, PushHeader] = {}
        self._bound: set[str] = set()
        self._cut()

    def _cut(self) -> None:
        """Cut the vectors that the rule updates into chunks."""
        states = () if self.rule is None else self.rule.states
        self._state = tuple(self.vectors[name] for name in states)
        self._views = [(self.parameters[s], tuple(vector[s] for vector in self._state)) for s in self._slices]

    @property
    def parameters(self) -> Any:
        """The parameters, shape (range.size,)."""
        return self.vectors[PARAMETERS]

    def bind(self, memory: Mapping[str, np.ndarray]) -> None:
        """Move vectors into other memory, such as a window's, and copy their values there.

        Parameters
        ----------
        memory : mapping of str to array, shape (range.size,)
            Memory of the vectors' dtype by their names. Other vectors stay where they are.

        Raises
        ------
        ValueError
            The memory has another shape or dtype.
        """
        for name, array in memory.items():
            self.vectors[name] = moved(self.vectors[name], array)
        self._bound.update(memory)
        self._cut()

    def unbind(self) -> None:
        """Move the vectors that `bind` has moved into memory of the shard's own."""
        for name in self._bound:
            self.vectors[name] = self.vectors[name].copy()
        self._bound.clear()
        self._cut()

    @property
    def at_rest(self) -> bool:
        """Whether no push has arrived in part."""
        return not self._open

    def is_open(self, worker: int) -> bool:
        """Tell whether a push of `worker` has arrived in part."""
        return worker in self._open

    def chunk(self, number: int) -> Any:
        """Return one chunk of the parameters."""
        return self._views[number][0]

    def part(self, vector: Any, number: int) -> Any:
        """Return one chunk of a vector that is as long as the shard."""
        return vector[self._slices[number]]

    @property
    def rate(self) -> float:
        """The rule's rate for the push whose chunk arrived last."""
        assert self.rule is not None
        return self.rule.rate * self.rate_factor

    @property
    def rate_factor(self) -> float:
        """The factor of all rates for the push whose chunk arrived last."""
        return self._rate_at(self.portion)

    def update(self, chunk: int, gradient: Any, ordinal: int, scale: float = 1.0) -> None:
        """Apply the rule to one chunk of the parameters.

        Parameters
        ----------
        chunk : int
            Number of the chunk.
        gradient : array, shape (chunk's size,)
        ordinal : int
            Number of the update, from 1.
        scale : float
            Factor of the rate.
        """
        parameters, state = self._views[chunk]
        self._rules[chunk].update(parameters, state, gradient, ordinal, self.rate * scale)

    def add(self, chunk: int, values: Any, factor: float = 1.0) -> None:
        """Add `factor` times `values`, shape (chunk's size,), to one chunk of the parameters, except to frozen ones."""
        parameters = self.chunk(chunk)
        for part in self._unfrozen[chunk]:
            self._adding.update(parameters[part], (), values[part], 1, -factor)

    def assign(self, chunk: int, values: Any) -> None:
        """Replace one chunk of the parameters, except frozen ones, by `values`, shape (chunk's size,)."""
        parameters = self.chunk(chunk)
        for part in self._unfrozen[chunk]:
            parameters[part] = values[part]

    def fingerprint(self) -> int:
        """Return a number that is another one after the parameters have changed: the sum of their bits."""
        parameters = to_host(self.parameters)
        bits = parameters.view(f"u{parameters.itemsize}")
        return int(np.add.reduce(bits, dtype=np.uint64))

    def update_sparsely(self, gradient: Any, ordinal: int, portion: int, staleness: int) -> None:
        """Apply the rule to all parameters whose gradient isn't 0.

        Parameters
        ----------
        gradient : array, shape (range.size,)
            What it has for statistics is changed.
        ordinal : int
            Number of the update, from 1.
        portion : int
            The portion that the gradient was computed on.
        staleness : int
            Number of updates since the parameters were read that it was computed at.
        """
        assert self.rule is not None
        rate = self.rule.rate * self._rate_at(portion)
        self._damping_of_all.damp(0, gradient, staleness)
        self._rule_of_all.update(self.parameters, self._state, gradient, ordinal, rate, sparse=True)

    def state(self) -> dict[str, Any]:
        """Return all that the shard keeps between two chunks.

        Returns
        -------
        dict of str to array
            Vectors of shape (range.size,), which are the shard's own memory: "parameters" and "rule/NAME". Counters of
            int64: the attributes, the histogram of staleness, and the headers of the pushes that have arrived in part.
        """
        headers = [
            (push.worker, push.ordinal, push.fetched, push.staleness, *push.portions) for push in self._open.values()
        ]
        return {
            **self.saved_vectors(),
            **{name: np.array(getattr(self, name), np.int64) for name in COUNTERS},
            **prefixed("staleness", self.staleness.state()),
            "open": np.array(headers, np.int64).reshape(-1, 6),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on where another shard was when its `state` was taken.

        Parameters
        ----------
        state : mapping of str to array
            The state of a shard with the same arguments. It is copied; its vectors lie where those of this shard do.
        """
        for name, vector in self.saved_vectors().items():
            vector[...] = state[name]
        for name in COUNTERS:
            setattr(self, name, int(state[name]))
        self.staleness.load(selected("staleness", state))
        self._open.clear()
        for worker, ordinal, fetched, staleness, first, last in state["open"].tolist():
            self._open[worker] = PushHeader(worker, ordinal, fetched, staleness, (first, last))

    def drop(self, push: PushHeader) -> None:
        """Count a push that the policy leaves out."""
        self.dropped += 1
        self.on_drop(push)

    def saved_vectors(self) -> dict[str, Any]:
        """Return the vectors by the names that they have in a checkpoint: "parameters" and "rule/NAME"."""
        return {name if name == PARAMETERS else f"rule/{name}": vector for name, vector in self.vectors.items()}


def moved(vector: np.ndarray, memory: np.ndarray) -> np.ndarray:
    """Return `memory` with the values of a vector; see `ShardState.bind`."""
    if (memory.shape, memory.dtype) != (vector.shape, vector.dtype):
        found, expected = (f"{each.dtype} of shape {each.shape}" for each in (memory, vector))
        raise ValueError(f"memory for a shard's vector: {found}, expected {expected}")
    np.copyto(memory, vector)
    return memory


def prefixed(prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a part under names that begin with the part's name."""
    return {f"{prefix}/{name}": values for name, values in state.items()}


def selected(prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a part; the inverse of `prefixed`."""
    return {name.removeprefix(f"{prefix}/"): state[name] for name in state if name.startswith(f"{prefix}/")}
