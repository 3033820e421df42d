"""A shard: one range of the parameters, its rule's state and its clock; held by servers and by the virtual engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from mpidl.parameters.ranges import Range, chunks
from mpidl.rules import Rule
from mpidl.shards.policies import Policy, Push
from mpidl.shards.staleness import Histogram

#: Bytes of a chunk: it stays in a server's cache between arrival and update.
CHUNK_BYTES = 512 * 1024
#: Elements of several of its vectors that are worked on at a time, for the same reason.
BLOCK = 1 << 14


class Shard:
    """One shard of the parameters.

    Parameters
    ----------
    range : Range
        The elements of the flat parameter vector that it holds.
    parameters : array, shape (range.size,)
        Their values; updated in place.
    rule : Rule or None
        None if the policy, or a coordinator's operations, alone change the vectors.
    policy : Policy
        What is done with a push.
    chunk : int
        Elements of a chunk, in which pushes arrive.
    state : mapping of str to array, optional
        The rule's state and other vectors that the shard keeps, by name, each like `parameters`; the rule's initial
        state if not given.
    clock : int
        Updates applied so far.
    rate_at : callable
        Of a portion's number, what the rule's rate is multiplied by for a push that was computed on it.
    sparing : list of Range
        Of the whole vector: what the rule leaves alone, see `mpidl.rules.Rule.update`.

    Attributes
    ----------
    pieces : list of Range
        The chunks of a push, within the shard.
    chunks : int
        How many there are.
    received : int
        How many chunks have been received.
    staleness : Histogram
        Of every push: the clock at its arrival less the clock when its worker fetched.
    dropped : int
        Pushes that the policy left out.
    on_drop : callable
        Called with each push that the policy leaves out.
    block : int or None
        Elements of several vectors that are best worked on at a time; None: all of them.
    """

    block: ClassVar[int | None] = BLOCK

    def __init__(
        self,
        range: Range,
        parameters: Any,
        rule: Rule | None,
        policy: Policy,
        chunk: int,
        state: Mapping[str, Any] | None = None,
        clock: int = 0,
        rate_at: Callable[[int], float] = lambda portion: 1.0,
        sparing: Sequence[Range] = (),
    ) -> None:
        self.range, self.parameters, self.rule, self.policy = range, parameters, rule, policy
        if state is None:
            state = {} if rule is None else dict(zip(rule.states, rule.init(parameters), strict=True))
        self.state = dict(state)
        # A rule's own, in its order.
        self._state = () if rule is None else tuple(self.state[name] for name in rule.states)
        self.clock = self._begun = clock
        self.pushes = self.received = self.dropped = 0
        self.staleness = Histogram()
        self.on_drop: Callable[[Push], None] = lambda push: None
        self.pieces = chunks(Range(0, range.size), chunk)
        self._slices = [slice(*piece) for piece in self.pieces]
        self._views = [(parameters[s], tuple(vector[s] for vector in self._state)) for s in self._slices]
        self.chunks = len(self.pieces)
        self._rate_at, self._scale = rate_at, 1.0
        self._all_sparing = [each.shift(-range.start) for each in sparing]
        self._sparing = [
            [shared.shift(-range.start - piece.start) for each in sparing if (shared := each.intersect(place))]
            for piece, place in ((piece, piece.shift(range.start)) for piece in self.pieces)
        ]
        self._open: dict[int, Push] = {}
        policy.attach(self)

    @property
    def at_rest(self) -> bool:
        """Whether every push that has begun to arrive has been applied whole."""
        return not self._open

    def is_open(self, worker: int) -> bool:
        """Tell whether a push of `worker` has arrived in part."""
        return worker in self._open

    def vectors(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: "parameters" and "rule/NAME", each of shape (range.size,)."""
        return {"parameters": self.parameters} | {f"rule/{name}": vector for name, vector in self.state.items()}

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return a copy of `vectors` in the host's memory."""
        return {name: np.array(vector) for name, vector in self.vectors().items()}

    def bring(self, values: np.ndarray) -> Any:
        """Return `values`, which have arrived in the host's memory, where the shard's vectors lie; until the next."""
        return values

    def publish(self) -> None:
        """Show others the parameters as they are, after changing them otherwise than by a push."""

    def receive_chunk(
        self, worker: int, chunk: int, fetched: int, values: Any, portions: tuple[int, int] = (-1, -1)
    ) -> bool:
        """Act on one chunk of a push; a worker's chunks arrive in order.

        Parameters
        ----------
        worker : int
        chunk : int
            From 0; chunk 0 opens the push, the last chunk completes it.
        fetched : int
            The clock of this shard when the worker fetched what it computed the gradient on.
        values : array, shape (chunk's size,)
        portions : (int, int)
            The first and the last portion that the push was computed on.

        Returns
        -------
        bool
            Whether this completed the push.
        """
        self.received += 1
        if chunk == 0:
            self._begun += 1
            self._open[worker] = Push(worker, self._begun, fetched, self.clock - fetched, portions)
        push = self._open[worker]
        self._scale = self._rate_at(push.portions[1])
        if chunk < self.chunks - 1:
            self.policy.apply_chunk(self, chunk, values, push)
            return False
        staleness = self.clock - fetched
        self.policy.apply_chunk(self, chunk, values, push)
        del self._open[worker]
        self.pushes += 1
        self.staleness.add(staleness)
        self.policy.end_push(self, push)
        return True

    def receive_push(self, worker: int, fetched: int, values: Any, portions: tuple[int, int] = (-1, -1)) -> None:
        """Act on a whole push: `values` has shape (range.size,)."""
        for chunk, piece in enumerate(self._slices):
            self.receive_chunk(worker, chunk, fetched, values[piece], portions)

    def drop(self, push: Push) -> None:
        """Count a push that the policy leaves out."""
        self.dropped += 1
        self.on_drop(push)

    def remove_worker(self, worker: int) -> None:
        """Act on a worker's having no more pushes."""
        self.policy.remove_worker(self, worker)

    def apply_rest(self) -> None:
        """Act on there being no more pushes at all."""
        self.policy.apply_rest(self)

    def chunk(self, number: int) -> Any:
        """Return one chunk of the parameters."""
        return self._views[number][0]

    def part(self, vector: Any, number: int) -> Any:
        """Return the part of a vector as long as the shard that goes with a chunk."""
        return vector[self._slices[number]]

    @property
    def rate(self) -> float:
        """The rule's rate for the push that is being received, as the schedule says."""
        assert self.rule is not None
        return self.rule.rate * self._scale

    def update_sparsely(self, gradient: Any, ordinal: int, portion: int) -> None:
        """Apply the rule to those elements of all parameters whose gradient, shape (range.size,), isn't 0."""
        assert self.rule is not None
        rate = self.rule.rate * self._rate_at(portion)
        self.rule.update(self.parameters, self._state, gradient, ordinal, rate, sparse=True, sparing=self._all_sparing)

    def update(self, chunk: int, gradient: Any, ordinal: int, scale: float = 1.0) -> None:
        """Apply the rule to one chunk of the parameters.

        Parameters
        ----------
        chunk : int
        gradient : array, shape (chunk's size,)
        ordinal : int
            Counts updates from 1.
        scale : float
            What the rate is multiplied by.
        """
        assert self.rule is not None
        parameters, state = self._views[chunk]
        self.rule.update(parameters, state, gradient, ordinal, self.rate * scale, sparing=self._sparing[chunk])
