"""From a configuration to a job: open the data, build the model."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from mpidl.config import Config
from mpidl.data import Dataset
from mpidl.errors import UsageError
from mpidl.job.job import Job
from mpidl.nn import from_config
from mpidl.nn.model import Model
from mpidl.nn.regularisation import Regularisation
from mpidl.storage.checkpoint import Checkpoint

#: ``model.factory`` of a run whose model was given as a Python object.
PYTHON_MODEL = "python:object"


def build(config: Config, checkpoint: Checkpoint | None = None) -> Job:
    """Open the data and build the model of a configuration.

    Raises
    ------
    UsageError
        A file is missing, or the parts don't fit together.
    """
    dataset = config.data_source.open()
    return Job(config, dataset, build_model(config, dataset), checkpoint)


def build_model(config: Config, dataset: Dataset) -> Model:
    """Build the model of a configuration: its layers, or what ``model.factory`` returns for (dataset, seed)."""
    section = config.model
    if section.layer is not None and section.loss is not None:
        return from_config(
            section.layer, section.loss, dataset.input_shape, config.run.seed, section.dtype,
            label_smoothing=section.label_smoothing, regularisation=Regularisation(section.l2, section.clip),
        )  # fmt: skip
    assert section.factory is not None
    if section.factory == PYTHON_MODEL:
        raise UsageError(f"model.factory: {PYTHON_MODEL}: the run's model was an object of a Python script; go there")
    module, _, function = section.factory.partition(":")
    sys.path.insert(0, ".")
    try:
        factory: Any = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"model.factory: {section.factory} can't be imported: {error}") from error
    finally:
        sys.path.remove(".")
    return factory(dataset, config.run.seed)
