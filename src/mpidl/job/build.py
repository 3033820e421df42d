"""Building a job from a configuration: its data are opened, its model is built."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

from mpidl.config import Config
from mpidl.data import Dataset
from mpidl.errors import UsageError
from mpidl.job.job import Job
from mpidl.nn import from_config
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
        raise UsageError(f"model.factory: {PYTHON_MODEL}: the model is an object of a Python script, use it there")
    module, _, function = section.factory.partition(":")
    sys.path.insert(0, ".")
    try:
        factory: Callable[[Dataset, int], Model] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"model.factory: {section.factory} can't be imported: {error}") from error
    finally:
        sys.path.remove(".")
    return factory(dataset, config.run.seed)
