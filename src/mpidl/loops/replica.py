"""What a loop sees of the run: the model, batches and steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import sqrt
from typing import Any, Protocol, TypeVar

from mpidl.parameters.ranges import Range

T = TypeVar("T")


class LoopModel(Protocol):
    """The model whose gradients a loop computes.

    Attributes
    ----------
    given : object
        What the user calls the model.
    shown : object
        Its present parameters, as a user of such models has them.
    parts : dict of str to list of Range
        The parts that steps may change alone.
    """

    parts: dict[str, list[Range]]

    @property
    def given(self) -> Any: ...

    @property
    def shown(self) -> Any: ...

    def refresh(self) -> None:
        """Prepare for a step with other parameters."""

    def begin_batch(self, batch: Any) -> tuple[Any, Any]:
        """Prepare for a batch, and return its inputs and targets in memory that no other batch uses."""
        ...

    def step_gradient(self, given: Any, loss: Any, part: str | None) -> Any:
        """Return the flat gradient (size,) of a step, given what the loop says of it; LoopError if there is none."""
        ...


class Turn(Protocol):
    """What a loop's replica asks of the run, which takes its turn.

    Attributes
    ----------
    model : LoopModel
    again : bool
        Whether the gradient of the last step was too late, so that its batch or item comes again.
    """

    model: LoopModel
    again: bool

    def squared_norm(self) -> float:
        """Return the squared Euclidean norm of a recent gradient; 0 before the first."""
        ...

    def take(self, name: str) -> Any:
        """Return the next batch, None at the end; `name` is that of the replica's method."""
        ...

    def step(self, loss: Any, gradient: Any, part: str | None) -> None:
        """Do with a gradient what the algorithm does."""

    def log(self, name: str, value: Any) -> None:
        """Add a value to a figure."""


class Replica:
    """A replica of the model in a loop of one's own, which runs on each worker; see `mpidl.loop`.

    Attributes
    ----------
    number, replicas : int
        The replica, from 0, and how many there are.
    model : object
        The model that `mpidl.loop` was given.
    state : dict
        Numbers, texts and arrays by name, and lists, tuples and dicts of these, that the loop needs to go on. A
        checkpoint has what it holds at the end of a step, or when the loop takes a batch, and a run that continues from
        the checkpoint begins with that.
    """

    def __init__(self, number: int, replicas: int, turn: Turn) -> None:
        self.number, self.replicas, self._turn = number, replicas, turn
        self.state: dict[str, Any] = {}

    @property
    def model(self) -> Any:
        return self._turn.model.given

    @property
    def parameters(self) -> Any:
        """The present parameters: those of a module, a flat vector (size,), or a pytree of JAX."""
        return self._turn.model.shown

    @property
    def gradient_norm(self) -> float:
        """Euclidean norm of a recent gradient; 0 before the first."""
        return sqrt(self._turn.squared_norm())

    def batches(self) -> Iterator[Any]:
        """Yield (inputs, targets) of this replica's batches to the end of the training data.

        The loop may keep them. Where a run continues, they go on behind those of the last step that was saved. A batch
        comes again if its gradient was too late.
        """
        while (batch := self._turn.take("batches")) is not None:
            yield batch

    def share(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items of the loop's own, such as an environment's, as long as the run has steps left.

        For a run without data, whose steps are counted instead of epochs: each item is one. An item comes again if its
        gradient was too late.
        """
        for item in items:
            again = True
            while again:
                if self._turn.take("share") is None:
                    return
                yield item
                again = self._turn.again

    def log(self, **figures: Any) -> None:
        """Add values to figures of the loop's own, by their names; records have the means over all workers.

        Raises
        ------
        LoopError
            A value isn't a number, a name is too long, or there are more than 8 of them.
        """
        for name, value in figures.items():
            self._turn.log(name, value)

    def step(self, loss: Any = None, part: str | None = None, gradient: Any = None) -> None:
        """Do with the gradient what the algorithm does, such as push it and fetch parameters; then set it to zero.

        Parameters
        ----------
        loss : tensor or float, optional
            The loss, for the run's records. That of a module is back-propagated if no gradient has been since the last
            step: layers then leave while those below back-propagate.
        part : str, optional
            The name of a module, if the model is a dict of them: only that one is changed. May be the first argument.
            Gradients of others stay as they are.
        gradient : array (size,) or pytree, optional
            For models of NumPy and JAX. A module of PyTorch has its gradient in its parameters.

        Raises
        ------
        LoopError
            There has been no gradient since the last step, or the loss isn't a number.
        """
        if isinstance(loss, str):
            loss, part = part, loss
        self._turn.step(loss, gradient, part)


#: A loop: a function of the replica that it trains.
Loop = Callable[[Replica], object]
