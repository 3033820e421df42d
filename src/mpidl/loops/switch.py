"""The switch between a loop, which calls the run, and the engine, which calls the loop: each has its own stack."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from mpidl.algorithms.replica_state import ReplicaState
from mpidl.errors import MpidlError, kind_of, nearest, raised
from mpidl.loops.replica import Loop, LoopModel, Replica
from mpidl.nn.model import GivenUp
from mpidl.parameters.ranges import Range
from mpidl.transport.protocol import LOGGED, MOST_LOGGED

#: Times that a loop may ask for a batch after the last one, until it is ended.
MOST_EMPTY = 1000


class LoopError(MpidlError):
    """A loop raised an error, or has done what it can't do there."""


class Event(Enum):
    """What a loop does when it switches to the engine."""

    TAKES = "takes a batch"
    STEPS = "steps"
    IS_LATE = "steps with a gradient that nothing waits for any more"
    ENDS = "ends"


class Switch:
    """Runs a loop until it takes a batch, steps, or ends.

    Attributes
    ----------
    model : LoopModel
    replica : Replica
        What the loop gets.
    event : Event
        What it did last.
    loss : float or None
        The loss of the last step, unless another batch has been taken since, or the loop didn't say it.
    gradient : array (size,)
        That step's gradient.
    parts : sequence of Range
        The parts of the vector that the last step changes; all if there are none.
    again : bool
        Whether the gradient of the last step was too late, so that its batch comes again.
    stopped : bool
        Whether the run stops before the end of the data: a step then ends the loop.
    may_leave : bool
        Whether the replica may end without the gradient of a batch that it has taken.
    unstepped : object
        Gradients that no step has dealt with, while another replica's loop computes with the same model.
    """

    gradient: Any
    parts: Sequence[Range] = ()
    again = stopped = may_leave = False
    unstepped: Any = None

    def __init__(self, number: int, replicas: int, model: LoopModel, loop: Loop, state: ReplicaState) -> None:
        self.model, self._state = model, state
        self.replica = Replica(number, replicas, self)
        self.event = Event.ENDS
        self.loss: float | None = None
        self._loop, self._stack = loop, greenlet(self._run)
        self._engine = getcurrent()
        self._over = self._closed = False
        self._empty = 0

    # What the loop calls.

    def squared_norm(self) -> float:
        return self._state.norm.square

    def take(self, name: str) -> Any:
        self._check_inside(name)
        batch = None if self._over else self._engine.switch(Event.TAKES)
        if batch is None:
            self._empty += 1
            if self._empty > MOST_EMPTY:
                raise GreenletExit
        return batch

    def step(self, loss: Any, gradient: Any, part: str | None) -> None:
        """Hand the gradient over to the engine, and return when it has been dealt with."""
        self._check_inside("step")
        if self._closed and self.stopped:
            raise GreenletExit
        if self._closed:
            raise LoopError("replica.step was called after the last batch, expected a step for the batches before")
        if part is not None and part not in self.model.parts:
            raise LoopError(f"replica.step: {self._no_part(part)}")
        self.parts = () if part is None else self.model.parts[part]
        event = Event.STEPS
        self.loss = None if loss is None else as_number("replica.step: the loss", loss)
        try:
            self.gradient = self.model.step_gradient(gradient, loss, part)
        except GivenUp:
            event = Event.IS_LATE
        self._engine.switch(event)

    def _no_part(self, part: str) -> str:
        if self.model.parts:
            return f"no part {part!r} of the model{nearest(part, list(self.model.parts))}"
        return f"{part!r} alone needs a dict of modules, and algorithm downpour or rescaled with n_push = 1"

    def log(self, name: str, value: Any) -> None:
        logged = self._state.logged
        if name not in logged and (len(logged) == MOST_LOGGED or len(name.encode()) > LOGGED["name"].itemsize):
            most = f"at most {MOST_LOGGED}, of {LOGGED['name'].itemsize} bytes"
            raise LoopError(f"replica.log: {name} is one figure more, or its name is too long, expected {most}")
        total, count = logged.get(name, (0.0, 0))
        logged[name] = total + as_number(f"replica.log: {name}", value), count + 1

    def _check_inside(self, name: str) -> None:
        if getcurrent() is not self._stack:
            raise LoopError(f"replica.{name} was called outside of the loop, the function that mpidl.loop has")

    def _run(self, _: None) -> Event:
        try:
            self._loop(self.replica)
        except MpidlError:
            raise
        except Exception as error:
            raise LoopError(f"the loop {raised(error)}") from error
        return Event.ENDS

    # What the engine calls.

    @property
    def ended(self) -> bool:
        """Whether the loop has ended."""
        return bool(self._stack.dead)

    def resume(self, batch: Any = None) -> Event:
        """Let the loop run, with a batch if it has taken one, and return what it does next."""
        if self.ended:
            self.event = Event.ENDS
        else:
            self._engine = self._stack.parent = getcurrent()
            event = self._stack.switch(batch)
            self.event = event if isinstance(event, Event) else Event.ENDS  # it returns what ended it
        return self.event

    def compute(self, batch: Any) -> Event:
        """Let the loop run with the batch that it has taken."""
        self.loss, self.again = None, False
        return self.resume(self.model.begin_batch(batch))

    def finish(self, closed: bool) -> Event:
        """Let the loop run, which gets no more batches and, if `closed`, makes no more steps."""
        self._over, self._closed = True, closed
        return self.resume()

    def kill(self) -> None:
        """End the loop where it is, by an exception that only its ``finally`` clauses see."""
        self._over = self._closed = True
        with suppress(Exception):
            self._stack.throw()


def as_number(what: str, value: Any) -> float:
    """Return a tensor, an array or a number as a float; LoopError, which says what it is, if it isn't one number."""
    try:
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError):
        raise LoopError(f"{what} is {kind_of(value)}, expected a number") from None
