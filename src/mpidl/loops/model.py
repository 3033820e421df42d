"""A model whose gradients a loop of the user's own computes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from copy import copy
from math import nan
from typing import TYPE_CHECKING, Any

import numpy as np

from mpidl.algorithms.algorithm import Algorithm, Replica
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.config import Config
from mpidl.data.batch import Batch
from mpidl.data.nested import parts_of, rebuilt
from mpidl.errors import UsageError, kind_of, raised
from mpidl.job.build import Enclosed
from mpidl.loops.replica import Loop
from mpidl.loops.requests import LoopRequests
from mpidl.loops.saved import decoded, encoded
from mpidl.loops.switch import Event, LoopError, Switch, as_number
from mpidl.nn.adaptation import as_usage_errors
from mpidl.nn.model import CompleteModel, Evaluation, GivenUp
from mpidl.parameters.ranges import Range

if TYPE_CHECKING:
    Base = CompleteModel
else:
    Base = object

#: The name of the loop's state among what a replica keeps of its model.
STATE = "loop"


class OwnLoop(Enclosed):
    """A loop and, optionally, a function that evaluates, around a model; a run without data only counts steps.

    `class_in_loop` returns the class of models of a class in a loop.

    Attributes
    ----------
    given : object
        The model as the user gave it.
    evaluate : callable or None
    current : Switch or None
        That of the replica whose loop computes.
    switches : list of Switch
        All that have begun.
    state : dict
        The state of the loop in the checkpoint from which the run continues.
    """

    def __init__(
        self, given: Any, loop: Loop, evaluate: Callable[..., Any] | None,
        class_in_loop: Callable[[type[CompleteModel]], type[InLoop]], *, has_data: bool = True,
    ) -> None:  # fmt: skip
        self.given, self._loop, self.evaluate, self._has_data = given, loop, evaluate, has_data
        self._class_in_loop = class_in_loop
        modules = _modules(given)
        self.model = _Parameters(given) if modules is None and not _complete(given) else modules or given
        self.loss = None if modules is None else unknown_loss
        self.current: Switch | None = None
        self.switches: list[Switch] = []
        self.state: dict[str, Any] = {}

    def around(self, model: CompleteModel, config: Config) -> CompleteModel:
        name, partitions = config.algorithm.name, config.topology.partitions
        if config.algorithm.coordinated:
            raise UsageError(f"algorithm: {name} asks for gradients as it needs them, expected mpidl.train")
        if partitions > 1:
            raise UsageError(f"topology.partitions: {partitions}, but a loop has whole models, expected 1")
        same: Any = copy(model) if model is self.given else model
        same.__class__ = self._class_in_loop(type(model))
        same.loop, same.parts = self, {}
        if isinstance(self.given, dict) and modules_are_parted(config):
            same.begin_parts()
        if self.loss is unknown_loss:
            knows_loss = same.loss is not unknown_loss
        else:
            knows_loss = _complete(self.given) or hasattr(self.given, "evaluate")
        alone = self._has_data and knows_loss
        same.evaluated = "as a whole" if self.evaluate is not None else "by batch" if alone else "never"
        return same  # type: ignore[no-any-return]

    def begin(self, model: InLoop, number: int, replicas: int, state: ReplicaState) -> Switch:
        """Return the switch to a new loop for a model."""
        switch = Switch(number, replicas, model, self._loop, state)
        switch.replica.state.update(self.state)
        self.switches.append(switch)
        return switch


def modules_are_parted(config: Config) -> bool:
    """Return whether a step may change one of several modules alone.

    This needs servers that get each gradient by itself, and replicas that fetch after each push.
    """
    algorithm = config.algorithm
    simple = algorithm.pattern(1).fetches_next and getattr(algorithm, "n_push", 1) == 1
    plain = algorithm.wire_fetch == "fp32" and getattr(algorithm, "rate", None) is None
    return simple and plain and not algorithm.pattern(1).prefetches


def _modules(given: Any) -> Any:
    """Return a module of PyTorch, or one with those of a dict; None of anything else."""
    if (torch := sys.modules.get("torch")) is None:
        return None
    if isinstance(given, dict) and given and all(isinstance(each, torch.nn.Module) for each in given.values()):
        return torch.nn.ModuleDict(given)
    return given if isinstance(given, torch.nn.Module) else None


def _complete(given: Any) -> bool:
    """Return whether a user's model is more than parameters."""
    return not hasattr(given, "parameters") or hasattr(given, "loss_and_gradient")


def unknown_loss(outputs: Any, targets: Any) -> Any:
    """Raise LoopError: only the loop knows the loss of a module."""
    raise LoopError("the loss of the module is unknown, expected mpidl.loop(..., loss=...) for evaluations")


class _Parameters:
    """A user's object with a vector ``parameters`` and, perhaps, ``evaluate``, as a model."""

    def __init__(self, given: Any) -> None:
        self._given = given

    def __getattr__(self, name: str) -> Any:
        return getattr(self._given, name)

    @property
    def parameters(self) -> Any:
        return self._given.parameters

    @parameters.setter
    def parameters(self, vector: Any) -> None:
        self._given.parameters = vector

    loss_and_gradient = unknown_loss


class InLoop(Base):
    """What differs in a model whose gradients a loop computes."""

    own, movable, by_stages = True, False, ""
    loop: OwnLoop
    terms: tuple[str, ...] = ()
    _testing = False

    parts: dict[str, list[Range]]

    def begin_parts(self) -> None:
        """Fill in the `parts` of the model, which steps may change alone: their names and ranges, and all `pieces`."""

    # What the loop needs, as `LoopModel` describes it: here of a model with a flat vector.

    @property
    def given(self) -> Any:
        return self.loop.given

    @property
    def shown(self) -> Any:
        return self.parameters

    def refresh(self) -> None: ...

    def begin_batch(self, batch: Batch) -> tuple[Any, Any]:
        return owned(batch.inputs, _copied), owned(batch.targets, _copied)

    def step_gradient(self, given: Any, loss: Any, part: str | None) -> Any:
        if given is None:
            raise LoopError("replica.step: no gradient, expected step(gradient=...) for a model that isn't a module")
        found, expected = np.ascontiguousarray(given, self.dtype), (self.layout.size,)
        if found.shape != expected:
            raise LoopError(f"replica.step: the gradient has the shape {found.shape}, expected {expected}")
        return found

    def begin_evaluation(self) -> None:
        """Prepare for an evaluation by a function of the user's own."""

    def put_aside(self) -> Any:
        """Return the gradients that no step has dealt with; another loop follows."""

    def take_up(self, unstepped: Any) -> None:
        """Go on with what `put_aside` has returned; None for a new loop."""

    # What engines need.

    def requests(
        self, algorithm: Algorithm, number: int, parameters: Any, replicas: int, state: ReplicaState
    ) -> Replica:
        before = self.loop.current
        switch = self.loop.begin(self, number, replicas, state)

        def show() -> None:
            self._continue(switch)
            if self.parameters is not parameters:
                self.parameters = parameters

        requests = super().requests(algorithm, number, parameters, replicas, state)
        try:
            yield from LoopRequests(requests, algorithm, parameters, state, switch, show).run()
        finally:
            if before is not None:
                self._continue(before)

    def _continue(self, switch: Switch) -> None:
        """Go on with the loop of a replica, each of which has gradients of its own."""
        current = self.loop.current
        if current is not switch:
            if current is not None:
                current.unstepped = self.put_aside()
            self.take_up(switch.unstepped)
            self.loop.current = switch

    def loss_and_gradient(self, batch: Batch) -> tuple[float, Any]:
        """Let the loop run with a batch until it steps, takes another one, or ends; then the gradient is 0."""
        if self._testing:
            return super().loss_and_gradient(batch)
        switch = self.loop.current
        assert switch is not None, "a replica's requests lead here"
        if switch.compute(batch) is Event.STEPS:
            return switch.loss or 0.0, switch.gradient
        if switch.event is Event.IS_LATE or (switch.event is Event.ENDS and switch.may_leave):
            raise GivenUp("late, or the loop has ended")
        return 0.0, np.zeros_like(self.parameters)

    def loss_sums(self, loss: float, batch: Batch) -> tuple[float, float]:
        """Return the sums as those of any model; zeros if the loop didn't say what the loss is."""
        assert self.loop.current is not None
        return (loss * batch.total, batch.total) if self.loop.current.loss is not None else (0.0, 0.0)

    def rehearse(self, batch: Batch) -> list[str]:
        with as_usage_errors(), self.unchanged():
            if self.evaluated != "never":
                self.evaluate(batch)
        return []

    def finish(self) -> None:
        for switch in self.loop.switches:
            switch.kill()
        super().finish()

    # Evaluations.

    def evaluate(self, batch: Batch) -> Evaluation:
        if self.loop.evaluate is None:
            self._testing = True  # Some models have the loss from their gradient.
            try:
                return super().evaluate(batch)
            finally:
                self._testing = False
        switch = self.loop.current or self.loop.begin(self, 0, 1, ReplicaState())
        self.begin_evaluation()
        try:
            found = self.loop.evaluate(self.loop.given, switch.replica)
        except Exception as error:
            raise LoopError(f"the function evaluate {raised(error)}") from error
        if not isinstance(found, Mapping):
            raise LoopError(f"the function evaluate returned {kind_of(found)}, expected a dict of figures")
        figures = {f"{name}": as_number(f"the figure {name} of evaluate", value) for name, value in found.items()}
        if "loss" not in figures:
            raise LoopError("the function evaluate returned no 'loss', expected one, by which the best values are kept")
        loss, accuracy = figures.pop("loss"), figures.pop("accuracy", nan)
        self.terms = tuple(figures)
        return Evaluation(loss, accuracy, None, 1.0, 1.0, list(figures.values()))

    # The loop's state.

    def state(self) -> dict[str, Any]:
        kept = {} if self.loop.current is None else self.loop.current.replica.state
        return {**super().state(), **({STATE: encoded(kept)} if kept else {})}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        rest = dict(state)
        if (content := rest.pop(STATE, None)) is not None:
            self.loop.state = decoded(content)
        super().load_state(rest)


def owned(values: Any, copied: Callable[[Any], Any]) -> Any:
    """Return values nested in tuples, lists and mappings, each of them `copied`: no other batch uses their memory."""
    if isinstance(values, tuple | list | dict) and (parts := parts_of(values)) is not None:
        return rebuilt(values, {key: owned(each, copied) for key, each in parts.items()})
    return copied(values)


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value
