"""Training by a loop of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast

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
from mpidl.report.summary import Summary
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
    rules: Mapping[str, Rule] | None = None,
    resume: bool = False,
    callbacks: Sequence[Callable[..., object]] = (),
    loggers: Sequence[Logger | str] = (),
    comm: MPI.Intracomm | None = None,
    on_interrupt: Literal["exit", "return"] = "exit",
    **keywords: Unpack[Keywords],
) -> Summary:
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
    rules : mapping of str to Rule, optional
        The rules of several modules by their names, in the place of `rule`. They differ in their rates alone.
    config, algorithm, rule, resume, callbacks, loggers, comm, on_interrupt
        As in `mpidl.train`.
    **keywords
        As in `mpidl.train`.

    Returns
    -------
    Summary
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
    if rules is not None:
        if rule is not None or "groups" in keywords:
            raise UsageError("rules: rule or groups are given, too, expected rules alone")
        rule, groups = _one_rule(rules, model)
        keywords = {"groups": groups, **keywords}
    return train(
        OwnLoop(model, function, evaluate, class_in_loop, has_data=has_data),  # type: ignore[arg-type]
        given, loss=loss, config=config, algorithm=algorithm, rule=rule, resume=resume, callbacks=callbacks,
        loggers=loggers, comm=comm, on_interrupt=on_interrupt, **keywords,
    )  # fmt: skip


loop.__dict__["__signature__"] = signature(loop)


def _one_rule(rules: Mapping[str, Rule], model: Any) -> tuple[Rule, list[dict[str, Any]]]:
    """Return the rule of a dict of modules, and groups with the rates of their own rules."""
    if not isinstance(model, dict) or model.keys() != rules.keys():
        names = ", ".join(model) if isinstance(model, dict) else "no dict of modules"
        raise UsageError(f"rules: for {', '.join(rules)}, expected one for each module: {names}")
    first = next(iter(rules.values()))
    groups = []
    for name, rule in rules.items():
        if type(rule) is not type(first) or replace(cast(Any, rule), rate=first.rate) != first:
            raise UsageError(f"rules: {name}: found {rule}, expected rules that differ in their rates alone: {first}")
        groups.append({"match": f"{name}.*", "rate": rule.rate / first.rate})
    return first, groups


def _counted(tested: bool) -> Dataset:
    """Return data that only count steps."""
    steps = ArraySplit(np.zeros((STEPS, 1), np.float32), np.zeros((STEPS, 1), np.float32))
    return Dataset("steps", (1,), None, steps, steps if tested else None)


def class_in_loop(kind: type[CompleteModel]) -> type[InLoop]:
    """Return the class of a model of that class in a loop."""
    if kind.__module__ == "mpidl.torch.model":
        from mpidl.loops.module import ModuleInLoop

        return ModuleInLoop
    if kind.__module__ == "mpidl.jax.model":
        from mpidl.loops.tree import TreeInLoop

        return TreeInLoop
    return type(f"{kind.__name__}InLoop", (InLoop, kind), {"loss_and_gradient": InLoop.loss_and_gradient})
