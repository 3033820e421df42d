"""Stacking networks (Deng, Yu, Platt 2012, Scalable stacking and learning for building deep architectures)."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, ClassVar

import numpy as np
from msgspec.structs import replace

from mpidl.algorithms.coordination import (
    BatchSegment,
    Coordinated,
    Coordinator,
    CoordinatorRequest,
    Evaluate,
    EvaluationResult,
    Operate,
)
from mpidl.algorithms.curvature import GRADIENT
from mpidl.algorithms.requests import Function
from mpidl.algorithms.sandblaster import Optimiser, Sandblaster
from mpidl.nn.stacking import StackedModule, gradient, layers, normal_equations, solve
from mpidl.parameters import Layout, Range
from mpidl.schema import Count, Positive
from mpidl.shards.matrix import Gather, Scatter, whole
from mpidl.shards.state import PARAMETERS
from mpidl.shards.vectors import Combine

#: A task is a module times this number, and 0 for the gradient or the part of the normal equations, from 1.
PARTS = 1 << 20


@dataclass(frozen=True)
class Stacking(Coordinated):
    """Modules of one hidden layer, trained one after another; each takes the data and the outputs of those below it.

    The upper weights of a module, U, are the ridge regression of the targets on its hidden units; wherever the lower
    weights W are evaluated, U is computed anew. W begins at that of the module below, and is trained by L-BFGS with the
    paper's gradient, in which U follows W. All modules have equal shares of the run's epochs; an evaluation takes two.

    Parameters
    ----------
    modules : int
        Number of modules.
    hidden : int
        Hidden units of each module.
    ridge : float
        Factor of the identity matrix that is added to the sum of ``h h'`` over the samples.
    unit : int
        Number of portions that a replica takes at a time and pushes together.
    backups : bool
        Whether outstanding units near the end of an evaluation are assigned to a second replica.
    """

    name: ClassVar[str] = "stacking"
    makes_model: ClassVar[bool] = True

    modules: Count = 3
    hidden: Count = 300
    ridge: Positive = 1.0
    unit: Count = 2
    backups: bool = True

    def model(self, outputs: int) -> dict[str, Any]:
        made = layers(self.modules, self.hidden, outputs)
        return {"layer": made, "loss": "mean_squared_error", "l2": 0.0, "clip": None, "group": ()}

    @property
    def least_epochs(self) -> int:
        # A step takes two evaluations, at the old weights and at new ones, of two passes each.
        return 4 * self.modules

    def vectors(self) -> tuple[str, ...]:
        return Sandblaster().vectors()

    def function(self, task: int) -> Function:
        module, part = divmod(task, PARTS)
        return partial(normal_equations, number=module, part=part - 1) if part else partial(gradient, number=module)

    def coordinator(
        self, portions: int, state: dict[str, Any] | None = None, layout: Layout | None = None, samples: float = inf
    ) -> Coordinator:
        assert layout is not None
        return _Modules(self, portions, state or {}, layout).train(samples)


class _Modules(Optimiser):
    """Trains modules one after another, each as an objective of its own."""

    def __init__(self, stacking: Stacking, portions: int, state: dict[str, Any], layout: Layout) -> None:
        super().__init__(Sandblaster(), portions, state)
        self._stacking, self._layout = stacking, layout
        self._module, self._before = int(state.get("module", 0)), int(state.get("samples", 0))

    def train(self, samples: float) -> Coordinator:
        """Train all modules; `samples` is the number of samples of the whole run."""
        count, self._stopped = self._stacking.modules, False
        while True:
            self._share = samples * (self._module + 1) / count
            yield from self.run()
            if self._stopped or self._module + 1 == count:
                return
            yield from self._pass_on()
            yield from self._curvature.forget()
            self._module, self._number, self._step = self._module + 1, self._number + 1, 0.0

    def _report(self, norm: float) -> Generator[CoordinatorRequest, Any, bool]:
        yield from self._pass_on()
        self._stopped = yield from super()._report(norm)
        return self._stopped or self._before + self._samples >= self._share

    def _pass_on(self) -> Coordinator:
        """Give the modules above the weights of the present one, and outputs of modules below them the weight 0.

        The outputs of the whole network are then those of this module, and the next one begins where it is.
        """
        own, *above = (StackedModule.of(self._layout, number) for number in range(self._module, self._stacking.modules))
        if above:
            (found,) = yield Operate((Gather(PARAMETERS, Range(own.weight.start, own.upper.stop)),))
            weight, rest = np.split(whole(found), [own.weight.size])
            filled = [np.concatenate([weight, np.zeros(each.weight.size - weight.size), rest]) for each in above]
            places = [each.weight.start for each in above]
            yield Operate(tuple(Scatter(PARAMETERS, *each) for each in zip(places, filled, strict=True)))

    def _first_step(self, norm: float) -> float:
        return 1.0 if self._curvature.known else 1 / norm

    def _progress(self) -> dict[str, Any]:
        return super()._progress() | {"module": self._module, "samples": self._before + self._samples}

    def _evaluate(self) -> Generator[CoordinatorRequest, Any, None]:
        """Compute the upper weights of the module, its objective and its gradient, at the lower weights."""
        module, task = StackedModule.of(self._layout, self._module), self._module * PARTS
        segment, found = BatchSegment(GRADIENT, 0, self._portions), []
        sums = np.empty((module.hidden, module.hidden + module.outputs))
        for part in range(module.parts):
            found.append((yield Evaluate((segment,), task + 1 + part)))
            rows = sums[module.rows_of(part)]
            (pieces,) = yield Operate((Gather(GRADIENT, Range(0, rows.size)),))
            rows[:] = whole(pieces).reshape(rows.shape)
        upper = solve(sums, module.hidden, self._stacking.ridge)
        yield Operate((Scatter(PARAMETERS, module.upper.start, upper.reshape(-1)),))
        found.append((yield Evaluate((segment,), task)))
        (loss,), (weight,) = found[-1].losses, found[-1].weights
        self._value = (loss + self._stacking.ridge * float(np.sum(upper**2)) / module.outputs) / weight
        self._means = [self._value]
        self._found.append(_together(found))
        self._samples += sum(each.samples[0] for each in found)
        yield Operate((Combine(GRADIENT, ((1 / weight, GRADIENT),)),))


def _together(found: list[EvaluationResult]) -> EvaluationResult:
    """Return what several passes over the data have counted as one evaluation of the objective."""
    names = ("portions", "backups", "won", "waiting")
    return replace(found[-1], **{name: sum(getattr(each, name) for each in found) for name in names})
