"""Building a job from a configuration: its data are opened, its model is built."""

from __future__ import annotations

import importlib
import os
import sys

from mpidl.config import Config
from mpidl.data import Dataset
from mpidl.errors import MpidlError, UsageError
from mpidl.job.job import Job
from mpidl.nn import from_config
from mpidl.nn.adaptation import adapt, raised
from mpidl.nn.model import Model
from mpidl.nn.regularisation import Regularisation
from mpidl.storage.checkpoint import Checkpoint

#: The ``model.factory`` of runs whose model is an object of a Python script.
PYTHON_MODEL = "python:object"


def build(config: Config, checkpoint: Checkpoint | None = None) -> Job:
    """Return the job of a configuration.

    Parameters
    ----------
    config : Config
    checkpoint : Checkpoint, optional
        The checkpoint to resume from.

    Raises
    ------
    UsageError
        A file is missing, the model can't be built, or the parts don't fit together.
    """
    dataset = config.data_source.open()
    return Job(config, dataset, build_model(config, dataset), checkpoint)


def build_model(config: Config, dataset: Dataset) -> Model:
    """Return the network that ``[[model.layer]]`` describes, or what ``model.factory`` returns for (dataset, seed)."""
    section = config.model
    if section.layer is not None and section.loss is not None:
        return from_config(
            section.layer, section.loss, dataset.input_shape, config.run.seed, section.dtype,
            label_smoothing=section.label_smoothing, regularisation=Regularisation(section.l2, section.clip),
        )  # fmt: skip
    assert section.factory is not None
    if section.factory == PYTHON_MODEL:
        raise UsageError(
            f"model.factory: {PYTHON_MODEL}: the model of this run is an object of a Python script: give it to "
            "mpidl.train or mpidl.evaluate as `model`"
        )
    model = _call(section.factory, dataset, config.run.seed)
    try:
        return adapt(model)
    except UsageError as error:
        raise UsageError(f"model.factory: {section.factory}: {error}") from error.__cause__


def _call(name: str, dataset: Dataset, seed: int) -> Model:
    """Return what the function ``module:function`` of the user's own returns."""
    module, _, function = name.partition(":")
    # It stays there: the factory, and what it returns, may import their neighbours whenever they like.
    directory = os.getcwd()
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ModuleNotFoundError as error:
        if error.name is None or f"{module}.".startswith(f"{error.name}."):
            where = f"found no module {module} in {directory} or among the installed ones"
            raise UsageError(f"model.factory: {name}: {where}") from error
        raise UsageError(f"model.factory: {name}: module {module} {raised(error)}") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"model.factory: {name}: module {module} {raised(error)}") from error
    if not callable(found):
        what = "nothing" if found is None else f"{type(found).__name__}"
        raise UsageError(f"model.factory: {name}: found {what} of that name, expected a function of (dataset, seed)")
    try:
        model: Model = found(dataset, seed)
    except MpidlError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"model.factory: {name} {raised(error)}") from error
    return model
