"""Training by a loop of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np

from mpidl.algorithms import Algorithm
from mpidl.config import Config
from mpidl.data import Dataset
from mpidl.data.dataset import ArraySplit
from mpidl.data.given import Given
from mpidl.errors import UsageError, kind_of
from mpidl.loggers import Logger
from mpidl.loops.model import InLoop, OwnLoop
from mpidl.loops.replica import Replica
from mpidl.nn.model import CompleteModel, Model, TorchModule
from mpidl.rules import Rule
from mpidl.runs.keywords import Section, signature
from mpidl.runs.train import train

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpidl.runs.keyword_types import Keywords

#: Samples of the data of a loop without data, each of which is a step.
STEPS = 1024


def loop(
    function: Callable[[Replica], object],
    model: Model | TorchModule | Mapping[str, TorchModule],
    data: Given | None = None,
    *,
    evaluate: Callable[[Any, Replica], Mapping[str, Any]] | None = None,
    loss: str | Callable[[Any, Any], Any] | None = None,
    config: Config | str | Path | Mapping[str, Mapping[str, Any]] | None = None,
    algorithm: Algorithm | str | Section | None = None,
    rule: Rule | str | Section | None = None,
    resume: bool = False,
    callbacks: Sequence[Callable[..., object]] = (),
    loggers: Sequence[Logger | str] = (),
    comm: MPI.Intracomm | None = None,
    on_interrupt: Literal["exit", "return"] = "exit",
    **keywords: Unpack[Keywords],
) -> dict[str, Any]:
    """Train a model by a loop of one's own, on the ranks of the MPI job that runs this script, or in this process.

    Every rank runs the same script and calls this function with the same arguments. Each worker calls the loop once,
    with its replica of the model; servers and the coordinator serve. A step of the loop is one of the algorithm.

    Parameters
    ----------
    function : callable
        The loop: takes a `Replica`.
    model : torch.nn.Module, dict of them by names, JaxModel, Network or object
        An object has its parameters in ``parameters``, a vector.
    data : Dataset or Source, or list of them, optional
        As in `mpidl.train`. Without data, neither here nor in `config`, steps are counted instead of epochs
        (``steps``), and the loop has its own (`Replica.share`).
    evaluate : callable, optional
        Takes the model, with the parameters of the servers, and the replica; returns figures by their names, among
        which ``loss`` and ``accuracy`` are those of the test data. It is called after each epoch, and once before
        training, and needs no gradients. By default a module is evaluated on the test data if `loss` is given.
    loss : str or callable, optional
        The loss of evaluations, as in `mpidl.train`.
    config, algorithm, rule, resume, callbacks, loggers, comm, on_interrupt
        As in `mpidl.train`.
    **keywords
        As in `mpidl.train`.

    Returns
    -------
    dict
        The run's summary, on every rank.

    Raises
    ------
    UsageError
        An argument is wrong, or the algorithm asks for gradients itself (Sandblaster, stacking); one line.
    MpidlError
        The run or the loop failed; one line.

    Examples
    --------
    >>> def train(replica):
    ...     for inputs, targets in replica.batches():
    ...         loss = torch.nn.functional.cross_entropy(replica.model(inputs), targets)
    ...         loss.backward()
    ...         replica.step(loss)
    >>> summary = loop(train, module, Digits(), rule=Adam(1e-3), epochs=10)
    """
    for name, value in (("function", function), ("evaluate", evaluate)):
        if not callable(value) and (name, value) != ("evaluate", None):
            raise UsageError(f"{name}: found {kind_of(value)}, expected a function")
    given: Any = data
    has_data = data is not None or config is not None
    if not has_data:
        if "epochs" in keywords:
            raise UsageError("epochs: a loop without data counts steps, expected steps")
        given, keywords = _counted(evaluate is not None), {"batch": 1, **keywords}
    return train(
        OwnLoop(model, function, evaluate, _class_in_loop, has_data=has_data),  # type: ignore[arg-type]
        given, loss=loss, config=config, algorithm=algorithm, rule=rule, resume=resume, callbacks=callbacks,
        loggers=loggers, comm=comm, on_interrupt=on_interrupt, **keywords,
    )  # fmt: skip


loop.__dict__["__signature__"] = signature(loop)


def _counted(tested: bool) -> Dataset:
    """Return data that only count steps."""
    steps = ArraySplit(np.zeros((STEPS, 1), np.float32), np.zeros((STEPS, 1), np.float32))
    return Dataset("steps", (1,), None, steps, steps if tested else None)


def _class_in_loop(kind: type[CompleteModel]) -> type[InLoop]:
    """Return the class of a model of that class in a loop."""
    if kind.__module__ == "mpidl.torch.model":
        from mpidl.loops.module import ModuleInLoop

        return ModuleInLoop
    if kind.__module__ == "mpidl.jax.model":
        from mpidl.loops.tree import TreeInLoop

        return TreeInLoop
    return type(f"{kind.__name__}InLoop", (InLoop, kind), {"loss_and_gradient": InLoop.loss_and_gradient})
