"""Sandblaster L-BFGS (Dean et al. 2012, section 4.2)."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from math import fsum, inf
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from mpidl.algorithms.algorithm import WarmStart
from mpidl.algorithms.coordination import (
    BatchSegment,
    Coordinated,
    Coordinator,
    CoordinatorRequest,
    Evaluate,
    EvaluationResult,
    Iteration,
    Operate,
)
from mpidl.algorithms.curvature import DIRECTION, GRADIENT, PREVIOUS, ROUNDING, Curvature, InverseHessian, LimitedMemory
from mpidl.algorithms.downpour import Downpour
from mpidl.algorithms.line_search import MoreThuente, Point
from mpidl.errors import UsageError
from mpidl.parameters import Layout
from mpidl.rules import Adagrad
from mpidl.schema import Count, Natural, NonNegative
from mpidl.shards.state import PARAMETERS
from mpidl.shards.vectors import Combine, Dot, copy

#: The vector on the shards of the parameters at which a line search begins.
ORIGIN = "origin"
#: Gradients of the parts of a batch: the part shared with the previous batch, the unshared part, and the part shared
#: with the next batch.
FIRST, MIDDLE, LAST = "first", "middle", "last"


@dataclass(frozen=True)
class Sandblaster(Coordinated):
    """A quasi-Newton method, driven by a coordinator; replicas compute a batch's gradient in portions.

    Parameters
    ----------
    method : str
        "lbfgs", of which the coordinator never sees a vector, or "ssbroyden", the self-scaled Broyden method, whose
        approximation of the inverse Hessian servers keep whole: the square of the number of parameters, in float64.
        "bfgs" is the same without scaling.
    history : int
        Number of pairs in the history of "lbfgs", m.
    batch : float
        Fraction of the training data in a batch. If it is less than 1, each iteration has another batch; objectives
        are compared, and gradients subtracted, on the part shared by two batches (Berahas, Nocedal, Takáč 2016).
    overlap : float
        Fraction of a batch that it shares with the next one.
    unit : int
        Number of portions that a replica takes at a time and pushes together.
    backups : bool
        Whether outstanding units near the end of a batch are assigned to a second replica.
    warm_start : int
        Number of epochs of an initial run of Downpour, with Adagrad on the servers (the paper's hybrid).
    tolerance : float
        The run ends when the Euclidean norm of the gradient is below it.
    """

    name: ClassVar[str] = "sandblaster"

    method: Literal["lbfgs", "bfgs", "ssbroyden"] = "lbfgs"
    history: Annotated[int, Meta(ge=1, le=1000)] = 10
    batch: Annotated[float, Meta(gt=0, le=1)] = 1.0
    overlap: Annotated[float, Meta(gt=0, le=0.5)] = 0.25
    unit: Count = 2
    backups: bool = True
    warm_start: Natural = 0
    tolerance: NonNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.method != "lbfgs" and self.history != type(self).history:
            raise UsageError(
                f"history: {self.history}, but method {self.method!r} keeps the whole inverse Hessian; leave it out, "
                "or take method 'lbfgs'"
            )

    def vectors(self) -> tuple[str, ...]:
        parts = () if self.batch == 1 else (FIRST, MIDDLE, LAST)
        own = LimitedMemory.vectors(self.history) if self.method == "lbfgs" else InverseHessian.VECTORS
        return (GRADIENT, PREVIOUS, ORIGIN, DIRECTION, *parts, *own)

    def matrices(self) -> tuple[str, ...]:
        return () if self.method == "lbfgs" else InverseHessian.MATRICES

    def curvature(self, state: dict[str, Any]) -> Curvature:
        """Return the curvature from which the method takes its directions, resumed from a coordinator's `state`."""
        if self.method == "lbfgs":
            return LimitedMemory(self.history, state)
        return InverseHessian(self.method == "ssbroyden", state)

    def coordinator(
        self, portions: int, state: dict[str, Any] | None = None, layout: Layout | None = None, samples: float = inf
    ) -> Coordinator:
        """Return the coordinator of the paper's algorithm 7.2."""
        return Optimiser(self, portions, state or {}).run()

    def warm_start_run(self) -> WarmStart | None:
        """Return the warm start of the paper's hybrid."""
        return WarmStart(Downpour(), Adagrad(0.01), self.warm_start) if self.warm_start else None


class Optimiser:
    """The coordinator's state and its iteration."""

    def __init__(self, settings: Sandblaster, portions: int, state: dict[str, Any]) -> None:
        self._settings, self._portions, self._search = settings, portions, MoreThuente()
        self._curvature = settings.curvature(state)
        self._number = int(state.get("iteration", 0))
        self._batch = int(state.get("batch", 0))
        self._evaluations = int(state.get("evaluations", 0))
        self._found: list[EvaluationResult] = []
        self._samples = 0
        self._means: list[float] = []
        self._value = self._step = 0.0
        self._at_floor = False

    def run(self) -> Coordinator:
        """Iterate until the gradient is small, no step makes progress, or the answer to an iteration is to stop.

        There is no progress if the objective's slope promises less than its rounding error.
        """
        curvature = self._curvature
        yield from self._evaluate()
        if not curvature.known:
            yield from curvature.forget()
        while True:
            norm = yield from curvature.gradient_norm()
            if (self._number or curvature.known) and (yield from self._report(norm)):
                return
            if norm <= self._settings.tolerance:
                return
            accepted = yield from self._descend(self._first_step(norm))
            if accepted is None and self._whole and (self._at_floor or not curvature.known):
                return
            if accepted is None:
                yield from curvature.forget()
                yield from self._evaluate()
                continue
            self._number, self._step = self._number + 1, accepted.step
            yield from curvature.learn(accepted.step, self._shared)

    def _report(self, norm: float) -> Generator[CoordinatorRequest, Any, bool]:
        """Report an iteration; return whether to stop."""
        found, self._found = self._found, []
        self._evaluations += len(found)
        stop: bool = yield Iteration(
            self._number, self._value, norm, self._step, len(found), self._evaluations, self._samples,
            portions=sum(each.portions for each in found),
            backups=sum(each.backups for each in found),
            won=sum(each.won for each in found),
            waiting=fsum(each.waiting for each in found),
            state=self._progress(),
        )  # fmt: skip
        return stop

    def _progress(self) -> dict[str, Any]:
        """Return the state from which another coordinator resumes."""
        numbers = {"iteration": self._number, "batch": self._batch, "evaluations": self._evaluations}
        return {**numbers, **self._curvature.state()}

    @property
    def _whole(self) -> bool:
        return self._settings.batch == 1

    def _first_step(self, norm: float) -> float:
        """Return the first step of a search: 1 if a curvature is known, otherwise of length 1 (as in L-BFGS-B) or less.

        After a curvature was forgotten, the gradient may be small because the minimum is near.
        """
        if self._curvature.known:
            return 1.0
        return 1 / norm if not self._number else min(1.0, 1 / norm)

    def _descend(self, step: float) -> Generator[CoordinatorRequest, Any, Point | None]:
        """Search along a direction; leave parameters and gradient at the accepted point, or at the starting point.

        Trials are evaluated on the next batch and compared on the part that it shares with the current one. The last
        trial is the next iteration's evaluation.
        """
        operations = (
            copy(ORIGIN, PARAMETERS),
            *self._curvature.direction(),
            copy(PREVIOUS, GRADIENT if self._whole else LAST),
            Dot(((PREVIOUS, DIRECTION),)),
        )
        (slope,) = yield Operate(operations)
        start, trial = self._means[-1], 0.0
        self._batch += not self._whole
        self._at_floor = -slope * step <= ROUNDING * abs(start)
        if slope >= 0 or (self._at_floor and self._whole):
            return None
        search = self._search.search(start, slope, step)
        try:
            trial = next(search)
            while True:
                trial = search.send((yield from self._at(trial)))
        except StopIteration as end:
            accepted: Point | None = end.value
        if accepted is None:
            yield Operate((copy(PARAMETERS, ORIGIN),))
        elif accepted.step != trial:
            yield from self._at(accepted.step)
        return accepted

    @property
    def _shared(self) -> str:
        """The vector of the gradient of the part shared by this batch and the previous one."""
        return GRADIENT if self._whole else FIRST

    def _at(self, step: float) -> Generator[CoordinatorRequest, Any, tuple[float, float]]:
        """Return the objective at a step along the direction, and its slope, on the part shared by two batches."""
        yield Operate((Combine(PARAMETERS, ((1.0, ORIGIN), (step, DIRECTION))),))
        yield from self._evaluate()
        (slope,) = yield Operate((Dot(((self._shared, DIRECTION),)),))
        return self._means[0], slope

    def _evaluate(self) -> Generator[CoordinatorRequest, Any, None]:
        """Compute objective and gradient of the current batch at the parameters."""
        segments = self._segments()
        found: EvaluationResult = yield Evaluate(segments)
        weight = fsum(found.weights)
        self._value = fsum(found.losses) / weight
        self._means = [loss / part for loss, part in zip(found.losses, found.weights, strict=True) if part]
        self._found.append(found)
        self._samples += sum(found.samples)
        if self._whole:
            yield Operate((Combine(GRADIENT, ((1 / weight, GRADIENT),)),))
            return
        means = [
            Combine(each.vector, ((1 / part, each.vector),))
            for each, part in zip(segments, found.weights, strict=True)
            if part
        ]
        terms = tuple((part / weight, each.vector) for each, part in zip(segments, found.weights, strict=True))
        yield Operate((*means, Combine(GRADIENT, terms)))

    def _segments(self) -> tuple[BatchSegment, ...]:
        """Return the segments of the current batch."""
        if self._whole:
            return (BatchSegment(GRADIENT, 0, self._portions),)
        size = max(2, round(self._settings.batch * self._portions))
        shared = max(1, round(self._settings.overlap * size))
        start = self._batch * (size - shared)
        ends = (start, start + shared, start + size - shared, start + size)
        return tuple(
            BatchSegment(vector, first % self._portions, last - first)
            for vector, first, last in zip((FIRST, MIDDLE, LAST), ends, ends[1:], strict=False)
        )
