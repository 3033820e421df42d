"""What a job is, as texts by name: ranks compare theirs before they begin, and a resumed run its checkpoint's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpidl.config import Config
from mpidl.data import Dataset, Split
from mpidl.functions import same_random_numbers
from mpidl.metrics.metric import Scoring
from mpidl.nn.model import CompleteModel


def of_config(config: Config) -> dict[str, str]:
    """Return a configuration's keys, such as ``run.epochs``, with their values."""
    return dict(_flat(config.to_dict()))


def _flat(table: Mapping[str, Any], section: str = "") -> list[tuple[str, str]]:
    found = []
    for key, value in table.items():
        name = f"{section}{key}"
        found += _flat(value, f"{name}.") if isinstance(value, Mapping) else [(name, repr(value))]
    return found


def of_model(model: CompleteModel) -> dict[str, str]:
    """Return a model's dtype, its statistics, and the shapes of its tensors and tables by their names."""
    shapes = {f"model: {tensor.name}": f"shape {tensor.shape}" for tensor in model.layout}
    statistics = ", ".join(f"{part.start} to {part.stop}" for part in model.statistics)
    found = {"model: dtype": str(model.dtype), **shapes, "model: statistics": statistics or "none"}
    for table in model.tables:
        found[f"model: table {table.name}"] = f"{'any' if table.rows is None else table.rows} rows of {table.dimension}"
    for kind, arrays in (("constant", model.constants()), ("buffer", model.buffers())):
        found |= {f"model: {kind} {name}": f"{array.dtype} of shape {array.shape}" for name, array in arrays.items()}
    return found | {f"model: {alias}": f"another name of {name}" for alias, name in model.aliases.items()}


def of_data(dataset: Dataset) -> dict[str, str]:
    """Return the sizes of a dataset."""
    samples = {f"data: {name} samples": str(split.samples) for name, split in _splits(dataset).items()}
    if dataset.order is not None:
        samples["data: samples of an epoch"] = str(dataset.order.length)
    return samples | {"data: shape of a sample": str(dataset.input_shape), "data: classes": str(dataset.classes)}


def of_samples(dataset: Dataset) -> dict[str, str]:
    """Return checksums of the samples of a dataset; see `mpidl.data.Split.checksum`."""
    with same_random_numbers():
        return {f"data: checksum of the {name} samples": split.checksum() for name, split in _splits(dataset).items()}


def _splits(dataset: Dataset) -> dict[str, Split]:
    train, *others = dataset.splits.items()
    return dict([("training", train[1]), *others])


def scoring(model: CompleteModel, dataset: Dataset) -> Scoring:
    """Return how a model's loss reads outputs and the targets of a dataset."""
    return model.scoring(several_labels=dataset.classes is None)
