"""A shard: one range of the parameters, its rule's state and its clock; held by servers and by the virtual engine."""

from __future__ import annotations

from typing import Any

from mpidl.parameters.ranges import Range, chunks
from mpidl.policies import Policy, Push
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
    chunks : int
        How many chunks a push has.
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
        self._slices = [slice(*piece) for piece in pieces]
        self._views = [(parameters[s], tuple(vector[s] for vector in self.state)) for s in self._slices]
        self.chunks = len(pieces)
        self._begun = 0
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
            self._open[worker] = Push(worker, self._begun, self.clock - fetched)
        push = self._open[worker]
        self.policy.receive(self, chunk, values, push)
        if chunk < self.chunks - 1:
            return False
        del self._open[worker]
        self.pushes += 1
        self.staleness.add(self.clock - fetched)
        self.policy.complete(self, push)
        return True

    def finish(self) -> None:
        """Act on there being no more pushes."""
        self.policy.finish(self)

    def chunk(self, number: int) -> Any:
        """Return one chunk of the parameters."""
        return self._views[number][0]

    def part(self, vector: Any, number: int) -> Any:
        """Return the part of a vector as long as the shard that goes with a chunk."""
        return vector[self._slices[number]]

    def update(self, chunk: int, gradient: Any, ordinal: int, rate: float | None = None) -> None:
        """Apply the rule to one chunk of the parameters.

        Parameters
        ----------
        chunk : int
        gradient : array, shape (chunk's size,)
        ordinal : int
            Counts updates from 1.
        rate : float, optional
            Instead of the rule's own.
        """
        parameters, state = self._views[chunk]
        self.rule.update(parameters, state, gradient, ordinal, rate)
