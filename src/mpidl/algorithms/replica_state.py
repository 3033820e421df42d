"""The state of a replica between two steps, for checkpoints, and its local steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import fsum, inf
from time import perf_counter
from typing import Any

import numpy as np

from mpidl.device import to_host
from mpidl.parameters.ranges import Range
from mpidl.rules import Rule
from mpidl.rules.segments import Segment, SegmentedRule
from mpidl.rules.tensors import TensorRule, WholeTensors

#: Shortest time between two measurements, relative to that of the quickest one.
SPACING = 500


class GradientNorm:
    """Measures gradients for up to a hundredth of the time, because that takes a pass through memory.

    Parameters
    ----------
    trained : sequence of Range
        The ranges of the flat vector that are trained; nothing is measured if there are none.

    Attributes
    ----------
    square : float
        Squared Euclidean norm, over these ranges, of the gradient that was measured last; 0 if none was.
    """

    def __init__(self, trained: Sequence[Range] = ()) -> None:
        self._parts = [slice(*part) for part in trained]
        self._quickest, self._due = inf, 0.0
        self.square = 0.0

    def look(self, gradient: Any) -> None:
        """Measure a gradient, shape (size,), if it is time to."""
        if self._parts and (now := perf_counter()) >= self._due:
            self.square = fsum(float(gradient[part] @ gradient[part]) for part in self._parts)
            ended, first = perf_counter(), self._quickest == inf
            self._quickest = min(self._quickest, ended - now)
            # The first measurement may be slow, and is repeated at once.
            self._due = ended if first else ended + SPACING * self._quickest


class ReplicaState:
    """The vectors and counts of a replica, and the state of its local steps.

    A checkpoint may be taken whenever a replica asks for a batch or for a fetch: everything that it needs to resume
    must then be in the vectors passed to `keep` and in `counts`. This state must not change between the request for a
    batch and a fetch that follows it, since a resumed replica asks for the batch again.

    Parameters
    ----------
    rate_at : callable
        Takes a minibatch's number in the run and returns the factor of learning rates for its gradient.
    statistics : sequence of Range
        Parameters that rules don't change, such as running means: `sparing` of `mpidl.rules.Rule.update`.
    segments : sequence of Segment
        Parameters with their own settings of rules.
    kept : callable
        Returns what the replica keeps of its model for itself, by its names in checkpoints.
    fragments : sequence of Range
        The parts of the vector that replicas reduce one after another, if any.
    norm : GradientNorm
        Measures the replica's gradients; the engine shows it each.

    Attributes
    ----------
    portion, batch : int
        The portion of the current batch, and the batch's number in the run; set by the engine.
    weight : float
        Weight of the last gradient's batch, as in `mpidl.data.Batch`; set by the engine.
    counts : Counter
        Numbers by name, initially 0.
    unstepped : int
        Number of the last batches whose gradient is in a loop of the user's own, which hasn't made a step with it.
    logged : dict of str to (float, int)
        Figures that the replica logs by their names: the sum of the values and their number.
    """

    def __init__(
        self,
        rate_at: Callable[[int], float] = lambda batch: 1.0,
        statistics: Sequence[Range] = (),
        segments: Sequence[Segment] = (),
        kept: Callable[[], Mapping[str, np.ndarray]] = dict,
        fragments: Sequence[Range] = (),
        norm: GradientNorm | None = None,
    ) -> None:
        self.fragments, self.norm = fragments, norm or GradientNorm()
        self._rate_at, self._statistics, self._segments, self._kept = rate_at, statistics, segments, kept
        self.portion = self.batch = self.unstepped = 0
        self.weight = 1.0
        self.counts: Counter[str] = Counter()
        self.logged: dict[str, tuple[float, int]] = {}
        self._vectors: dict[str, Any] = {}
        self._loaded: dict[str, np.ndarray] = {}
        self._step: Step | None = None

    def keep(self, name: str, vector: Any) -> Any:
        """Include a vector in checkpoints, and return it; that of a resumed replica gets its saved values.

        Parameters
        ----------
        vector : array, shape (size,)
            The replica's own memory, on the host or a device.
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
        whole = Range(0, parameters.size)
        segmented = SegmentedRule(rule, whole, self._statistics, self._segments)
        tensors = WholeTensors(rule, whole, [whole], self._segments) if isinstance(rule, TensorRule) else None
        step = Step(rule, segmented, tensors, parameters, lambda: self._rate_at(self.batch), self.counts)
        for name, vector in zip(rule.states, step.state, strict=True):
            self.keep(f"rule/{name}", vector)
        self._step = step
        return step

    @property
    def rate(self) -> float:
        """The current learning rate of the replica's own steps; 0 if it makes none."""
        return 0.0 if self._step is None else self._step.rate

    def scale_statistics(self, change: Any, factor: float) -> None:
        """Multiply a change of the parameters, shape (size,), by a factor where it is of statistics."""
        for part in self._statistics:
            change[slice(*part)] *= factor

    def vectors(self) -> dict[str, np.ndarray]:
        """Return a copy of the vectors in the host's memory, and of what the replica keeps of its model."""
        vectors = {name: to_host(vector.copy()) for name, vector in self._vectors.items()}
        return vectors | {name: np.array(values) for name, values in self._kept().items()}

    def load(self, vectors: Mapping[str, np.ndarray], counts: Mapping[str, int], portion: int) -> None:
        """Restore the state of another replica before this one begins."""
        self._loaded = dict(vectors)
        self.counts.update(counts)
        self.portion = max(0, portion)


class Step:
    """A function that changes a replica's parameters by a gradient.

    Parameters
    ----------
    segmented : SegmentedRule
        The same rule with the parameters' segments.
    tensors : WholeTensors or None
        What a rule of whole tensors steps.
    parameters : array, shape (size,)
        Changed in place.
    scale : callable
        Returns the current factor of the rule's learning rate.
    counts : Counter
        Has the number of steps, as "steps".

    Attributes
    ----------
    state : tuple of array
        The rule's state.
    """

    def __init__(
        self, rule: Rule, segmented: SegmentedRule, tensors: WholeTensors | None, parameters: Any,
        scale: Callable[[], float], counts: Counter[str],
    ) -> None:  # fmt: skip
        self._rule, self._segmented, self._parameters, self._scale = rule, segmented, parameters, scale
        self._tensors = tensors
        self.state = rule.init(parameters)
        self._counts = counts

    @property
    def rate(self) -> float:
        """The current learning rate."""
        return self._rule.rate * self._scale()

    def __call__(self, gradient: Any) -> None:
        """Make one step by `gradient`, shape (size,)."""
        self._counts["steps"] += 1
        count = self._counts["steps"]
        self._segmented.update(self._parameters, self.state, gradient, count, self.rate)
        if self._tensors is not None:
            self._tensors.arrived(0, self._parameters, self.state, self.rate)

    def multiply_by_rates(self, vector: Any, factor: float, out: Any) -> None:
        """Store `factor` times the parameters' current rates, times `vector`, shape (size,), in `out`."""
        for part, of_part in self._segmented.rates:
            np.multiply(vector[part], factor * (self.rate * of_part), out=out[part])
