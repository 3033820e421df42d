"""A shard: one range of the parameters, its rule's state and its clock; held by servers and by the virtual engine."""

from __future__ import annotations

from typing import Any

from mpidl.algorithms.policies import Policy
from mpidl.parameters.ranges import Range, chunks
from mpidl.rules import Rule
from mpidl.staleness import Histogram


class Shard:
    """One shard of the parameter server.

    Parameters
    ----------
    range : Range
        The elements of the flat parameter vector that it holds.
    parameters : array, shape (range.size,)
        Their values; updated in place.
    rule : Rule
    policy : Policy
        What is done with a push.
    chunk : int
        Elements of a chunk, in which pushes arrive.

    Attributes
    ----------
    clock : int
        Updates applied so far.
    staleness : Histogram
        Of every push: the clock at its arrival less the clock when its worker fetched.
    """

    def __init__(self, range: Range, parameters: Any, rule: Rule, policy: Policy, chunk: int) -> None:
        self.range, self.parameters, self.rule, self.policy = range, parameters, rule, policy
        self.state = rule.init(parameters)
        self.clock = 0
        self.pushes = 0
        self.staleness = Histogram()
        pieces = chunks(Range(0, range.size), chunk)
        self._views = [(parameters[a:b], tuple(vector[a:b] for vector in self.state)) for a, b in pieces]
        self._last = len(pieces) - 1
        self._begun = 0
        self._ordinals: dict[int, int] = {}

    @property
    def at_rest(self) -> bool:
        """Whether every push that has begun to arrive has been applied whole."""
        return not self._ordinals

    def is_open(self, worker: int) -> bool:
        """Tell whether a push of `worker` has arrived in part."""
        return worker in self._ordinals

    def vectors(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: "parameters" and "rule/STATE", each of shape (range.size,)."""
        state = zip(self.rule.states, self.state, strict=True)
        return {"parameters": self.parameters} | {f"rule/{name}": vector for name, vector in state}

    def restore(self, state: dict[str, Any], clock: int) -> None:
        """Take over the rule's state vectors, by name, and the clock of a checkpoint."""
        for name, vector in zip(self.rule.states, self.state, strict=True):
            vector[:] = state[name]
        self.clock = self._begun = clock

    def receive(self, worker: int, chunk: int, fetched: int, values: Any) -> bool:
        """Act on one chunk of a push; a worker's chunks arrive in order.

        Parameters
        ----------
        worker : int
        chunk : int
            From 0; chunk 0 opens the push, the last chunk completes it.
        fetched : int
            The clock of this shard when the worker fetched what it computed the gradient on.
        values : array, shape (chunk's size,)

        Returns
        -------
        bool
            Whether this completed the push.
        """
        if chunk == 0:
            self._begun += 1
            self._ordinals[worker] = self._begun
        self.policy.receive(self, chunk, values, self._ordinals[worker])
        if chunk < self._last:
            return False
        del self._ordinals[worker]
        self.pushes += 1
        self.staleness.add(self.clock - fetched)
        self.policy.complete(self)
        return True

    def update(self, chunk: int, gradient: Any, ordinal: int) -> None:
        """Apply the rule to one chunk of the parameters; `ordinal` counts updates from 1."""
        parameters, state = self._views[chunk]
        self.rule.update(parameters, state, gradient, ordinal)
