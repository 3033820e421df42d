"""What a replica keeps between two steps, which a checkpoint holds, and the steps that it makes by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mpidl.device import to_host
from mpidl.parameters.ranges import Range
from mpidl.rules import Rule
from mpidl.rules.segments import Segment, SegmentedRule


class ReplicaState:
    """The vectors and counts that a replica keeps, and the makings of its own steps.

    Whenever a replica asks for a batch or for a fetch, a checkpoint may be cut: all that it goes on from must then be
    in the vectors that it keeps and in `counts`. Between the request of a batch and a fetch that follows it, nothing
    of that may change, since the replica that is resumed asks for the batch again.

    Parameters
    ----------
    rate_at : callable
        Takes a portion's number and returns the factor of learning rates for gradients of that portion.
    statistics : sequence of Range
        Parameters that rules leave alone, such as running means; see `sparing` of `mpidl.rules.Rule.update`.
    segments : sequence of Segment
        Parameters that rules update in ways of their own.
    buffers : callable
        Returns what the replica's model counts by itself, by name; see `mpidl.nn.model.CompleteModel.buffers`.
    fragments : sequence of Range
        The parts of the vector that replicas reduce one after another, if the algorithm does.

    Attributes
    ----------
    portion : int
        The portion of the present batch; the engine sets it.
    weight : float
        What the batch of the last gradient counts beside others; the engine sets it. See `mpidl.data.Batch`.
    counts : Counter
        Numbers by name, 0 at first.
    """

    def __init__(
        self,
        rate_at: Callable[[int], float] = lambda portion: 1.0,
        statistics: Sequence[Range] = (),
        segments: Sequence[Segment] = (),
        buffers: Callable[[], Mapping[str, np.ndarray]] = dict,
        fragments: Sequence[Range] = (),
    ) -> None:
        self.fragments = fragments
        self._rate_at, self._statistics, self._segments, self._buffers = rate_at, statistics, segments, buffers
        self.portion = 0
        self.weight = 1.0
        self.counts: Counter[str] = Counter()
        self._vectors: dict[str, Any] = {}
        self._loaded: dict[str, np.ndarray] = {}

    def keep(self, name: str, vector: Any) -> Any:
        """Let checkpoints hold a vector, and return it; a resumed replica's has the values that it had.

        Parameters
        ----------
        name : str
        vector : array, shape (size,)
            The replica's own memory, the host's or a device's.
        """
        self._vectors[name] = vector
        if (values := self._loaded.pop(name, None)) is not None:
            if hasattr(vector, "set"):
                vector.set(values)
            else:
                vector[:] = values
        return vector

    def step_by(self, rule: Rule, parameters: Any) -> Step:
        """Return a function of a gradient that changes `parameters`, shape (size,), by `rule`; its state is kept."""
        segmented = SegmentedRule(rule, Range(0, parameters.size), self._statistics, self._segments)
        step = Step(rule, segmented, parameters, lambda: self._rate_at(self.portion), self.counts)
        for name, vector in zip(rule.states, step.state, strict=True):
            self.keep(f"rule/{name}", vector)
        return step

    def scale_statistics(self, change: Any, factor: float) -> None:
        """Multiply what a change of the parameters, shape (size,), has for statistics."""
        for part in self._statistics:
            change[slice(*part)] *= factor

    @property
    def keeps(self) -> bool:
        """Whether there are vectors to hold."""
        return bool(self._vectors)

    def vectors(self) -> dict[str, np.ndarray]:
        """Return a copy of the vectors in the host's memory, and of the model's buffers as "buffers/NAME"."""
        kept = {name: to_host(vector.copy()) for name, vector in self._vectors.items()}
        return kept | {f"buffers/{name}": np.array(values) for name, values in self._buffers().items()}

    def load(self, vectors: Mapping[str, np.ndarray], counts: Mapping[str, int], portion: int) -> None:
        """Let the replica, which has not begun, go on where another was when these were taken."""
        self._loaded = dict(vectors)
        self.counts.update(counts)
        self.portion = max(0, portion)


class Step:
    """A function that changes a replica's parameters by a gradient.

    Parameters
    ----------
    rule : Rule
    segmented : SegmentedRule
        The rule as it updates the parameters.
    parameters : array, shape (size,)
        Changed in place.
    scale : callable
        Returns the present factor of the rule's learning rate.
    counts : Counter
        Has the number of steps, as "steps".

    Attributes
    ----------
    state : tuple of array
        The rule's state.
    """

    def __init__(
        self,
        rule: Rule,
        segmented: SegmentedRule,
        parameters: Any,
        scale: Callable[[], float],
        counts: Counter[str],
    ) -> None:
        self._rule, self._segmented, self._parameters, self._scale = rule, segmented, parameters, scale
        self.state = rule.init(parameters)
        self._counts = counts

    @property
    def rate(self) -> float:
        """The present learning rate."""
        return self._rule.rate * self._scale()

    def __call__(self, gradient: Any) -> None:
        """Make one step by `gradient`, shape (size,)."""
        self._counts["steps"] += 1
        count = self._counts["steps"]
        self._segmented.update(self._parameters, self.state, gradient, count, self.rate)

    def multiply_by_rates(self, vector: Any, factor: float, out: Any) -> None:
        """Store `factor` times the present rates of the parameters, times `vector`, shape (size,), in `out`."""
        for part, of_part in self._segmented.rates:
            np.multiply(vector[part], factor * (self.rate * of_part), out=out[part])
