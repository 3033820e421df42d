"""Building a job from a configuration: its data are opened, its model is built."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from mpidl.algorithms.coordination import Coordinated
from mpidl.config import PYTHON_MODEL, Config, ModelSection
from mpidl.data import Dataset
from mpidl.errors import UsageError, kind_of
from mpidl.functions import call, find
from mpidl.job.job import Job
from mpidl.launch import environment
from mpidl.nn import Network, from_config
from mpidl.nn.adaptation import adapt
from mpidl.nn.losses import Regularisation
from mpidl.nn.model import CompleteModel
from mpidl.storage.checkpoint import Checkpoint

#: The loss of the last training of each module, for evaluations in the same process.
TRAINED_WITH: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def build(config: Config, checkpoint: Checkpoint | None = None) -> Job:
    """Return the job of a configuration, which resumes from the checkpoint, if any.

    Raise UsageError if a file is missing, the model can't be built, or the parts don't fit together.
    """
    dataset = config.data_source.open()
    config = with_model(config, dataset)
    return Job.of(config, dataset, build_model(config, dataset), checkpoint)


def with_model(config: Config, dataset: Dataset) -> Config:
    """Return a configuration with the keys of ``[model]`` that its algorithm determines.

    Raise UsageError if the section has other values for them.
    """
    algorithm, section = config.algorithm, config.model
    if not (isinstance(algorithm, Coordinated) and algorithm.makes_model):
        return config
    if section.factory is not None:
        raise UsageError(f"model: given, but {algorithm.name} makes its own, expected none")
    made = algorithm.model(_outputs(dataset) if dataset.classes is None else dataset.classes)
    for key, value in made.items():
        found = getattr(section, key)
        if found not in (value, getattr(ModelSection, key)):
            raise UsageError(f"model.{key}: given, but {algorithm.name} makes its own model, expected none")
    return replace(config, model=replace(section, **made))


def _outputs(dataset: Dataset) -> int:
    """Return the number of floats that are a sample's target; UsageError if the targets are anything else."""
    targets = dataset.train.gather(np.arange(1)).targets
    if getattr(targets, "ndim", None) != 2:
        found = getattr(targets, "shape", kind_of(targets))
        raise UsageError(f"data: targets of a batch {found}, expected labels of known classes, or floats (n, outputs)")
    return int(targets.shape[1])


def build_model(config: Config, dataset: Dataset) -> CompleteModel:
    """Return the network that ``[[model.layer]]`` describes, or what ``model.factory`` returns for (dataset, seed)."""
    section = config.model
    if section.factory is None:
        if dataset.input_shape is None:
            expected = "expected arrays of floats, bytes or other integers, or model.factory"
            raise UsageError(f"model.layer: the data's samples aren't arrays of one shape, {expected}")
        return build_network(section, dataset.input_shape, config.run.seed)
    if section.factory == PYTHON_MODEL:
        raise UsageError(
            f"model.factory: {PYTHON_MODEL}: the model of this run is an object of a Python script: give it to "
            "mpidl.train or mpidl.evaluate as `model`"
        )
    given = call("model.factory", section.factory, "(dataset, seed)", dataset, config.run.seed)
    model, loss = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    try:
        return own_model(model, config, loss)
    except UsageError as error:
        raise UsageError(f"model.factory: {section.factory}: {error}") from error.__cause__


def build_network(section: ModelSection, input_shape: Sequence[int], seed: int) -> Network:
    """Return the network that a section with layers describes."""
    assert section.layer is not None
    assert section.loss is not None
    assert section.dtype is not None
    return from_config(
        section.layer, section.loss, input_shape, seed, section.dtype,
        label_smoothing=section.label_smoothing, regularisation=Regularisation(section.l2, section.clip),
    )  # fmt: skip


class Enclosed(ABC):
    """What a script gives as a model, if it is to be trained in another way than by its loss.

    Attributes
    ----------
    model : object
        A model or a module, of which a model is made.
    loss : callable or None
        The loss of a module, if neither the script nor the configuration has one.
    """

    model: Any
    loss: Any = None

    @abstractmethod
    def around(self, model: CompleteModel, config: Config) -> CompleteModel:
        """Return what is trained, given the model that was made; UsageError if the configuration doesn't fit it."""


def own_model(given: Any, config: Config, loss: Any = None) -> CompleteModel:
    """Return what users hand in, a `Model` or a `torch.nn.Module`, as a model with all that the package needs.

    A `mpidl.jax.JaxModel` has all that already. The section ``[model]`` of the configuration says how a module is
    trained, and its loss, unless `loss` does; without either, it is that of its last training. Raise UsageError if a
    model is neither or lacks something, or a module has no loss.
    """
    section = config.model
    loss = section.loss if loss is None else loss
    if isinstance(given, Enclosed):
        return given.around(own_model(given.model, config, loss or given.loss), config)
    for key, value in (("model", given), ("model.loss", loss)):
        if isinstance(value, type):
            raise UsageError(f"{key}: found the class {value.__name__}, expected one of its objects")
    torch = sys.modules.get("torch")  # It has been imported if the model is one of its modules.
    if torch is not None and isinstance(given, torch.nn.Module):
        from mpidl.torch import TorchModel

        loss = TRAINED_WITH.get(given) if loss is None else loss
        if loss is None:
            raise UsageError(f"model.loss: none, expected one for the module {type(given).__name__}")
        if environment.world().size > 1 and environment.THREAD_VARIABLES[0] not in os.environ:
            # A script may have imported PyTorch before this package could tell it how many cores a rank has.
            torch.set_num_threads(environment.threads())
        if isinstance(loss, str) and ":" in loss:
            loss = find("model.loss", loss, "(outputs, targets)")
        return _of_type(TorchModel(given, loss, seed=config.run.seed, **section.of_modules), section.dtype)
    tree = isinstance(given, dict | list | tuple)
    hint = "; of parameters and a loss of JAX, make a mpidl.jax.JaxModel" if tree else ""
    hint = "; Network(..., loss=...) has its own" if isinstance(given, Network) else hint
    for key in ("loss",) * (loss is not None) + tuple(section.of_modules):
        raise UsageError(f"model.{key}: is for a torch.nn.Module, found {kind_of(given)}{hint}")
    return _of_type(adapt(given), section.dtype)


def _of_type(model: CompleteModel, dtype: str | None) -> CompleteModel:
    """Return a user's model; raise UsageError if its parameters have another type than ``model.dtype``."""
    if dtype not in (None, model.dtype.name):
        raise UsageError(f"model.dtype: {dtype!r}, but the parameters of the model are {model.dtype}")
    return model
