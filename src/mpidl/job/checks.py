"""Whether the parts of a job fit together, and fit the checkpoint that it resumes from; and what a job is, as texts.

What doesn't fit is a `UsageError` of one line. Ranks compare the texts before they begin, and a resumed run compares
its own with its checkpoint's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import asdict

import numpy as np

from mpidl.algorithms import Exchange
from mpidl.config import Config, TablesSection
from mpidl.data import Dataset, Split
from mpidl.data.columns import LABELS_PER_CHECK, wrong_label
from mpidl.errors import UsageError, quoted
from mpidl.functions import same_random_numbers
from mpidl.history.defaults import flat
from mpidl.metrics.metric import Scoring
from mpidl.nn.model import CompleteModel
from mpidl.schema import LARGEST
from mpidl.shards.scheduled_rule import AVERAGE
from mpidl.storage.checkpoint import BUFFERS, CONSTANTS, Checkpoint
from mpidl.storage.table_files import check_tables


def check_parts(config: Config, dataset: Dataset, model: CompleteModel) -> None:
    """Check that a configuration, its data and its model fit together."""
    model.check_data(dataset.input_shape, dataset.classes)
    if config.rate.patience is not None and len(dataset.splits) == 1:
        raise UsageError("rate.schedule: 'plateau', but the data have neither validation nor test samples")
    ends = [key for key in ("metrics", "target", "patience") if getattr(config.run, key)]
    if ends and len(dataset.splits) == 1:
        found = quoted(getattr(config.run, ends[0]))
        raise UsageError(f"run.{ends[0]}: {found}, but the data have neither validation nor test samples")
    if dataset.order is not None and config.data.shuffle is not None:
        raise UsageError(f"data.shuffle: {quoted(config.data.shuffle)}, but the data have a sampler; leave it out")
    name, size = config.algorithm.name, model.layout.size
    if model.statistics and config.algorithm.coordinated:
        statistic = next(each.name for each in model.layout if each.start == model.statistics[0].start)
        raise UsageError(
            f"algorithm.name: {name} minimises one function of the parameters; a model with statistics ({statistic}) "
            "isn't supported"
        )
    tables = [each.name for each in model.tables]
    for tensor in (*model.layout.shapes, *model.constants(), *model.buffers(), *model.aliases, *tables):
        if not tensor.isascii() and tensor.encode(errors="replace").decode() != tensor:
            raise UsageError(f"model: a tensor is named {quoted(tensor)}, expected valid UTF-8")
    if size > LARGEST:
        raise UsageError("model: more than 2**63 - 1 parameters, expected fewer")
    if config.servers > size:
        raise UsageError(
            f"topology.servers: {config.servers}, expected at most one for each of the model's {size} parameters"
        )
    if config.device.shards and not config.servers:
        raise UsageError(f"device.shards: true, but {name} has no servers")
    _check_tables(config, model)


def check_labels(dataset: Dataset, ignored: Collection[int]) -> None:
    """Raise UsageError for a label below 0, in data of known classes, that isn't one of those that the loss ignores."""
    if dataset.classes is None:
        return
    for name, split in dataset.splits.items():
        for start in range(0, split.samples, LABELS_PER_CHECK):
            labels = split.labels(start, min(start + LABELS_PER_CHECK, split.samples))
            if labels is None or labels.min() >= 0:
                continue
            wrong = (labels < 0) & ~np.isin(labels, list(ignored))
            if wrong.any():
                expected = f"0 to {dataset.classes - 1}, or a loss whose ignore_index this is"
                raise wrong_label(f"data: {name}", labels, wrong, start, expected)


def _check_tables(config: Config, model: CompleteModel) -> None:
    """Check that a model's tables can be trained as configured, and that ``[tables]`` isn't for nothing."""
    if not model.tables:
        given, default = asdict(config.tables), TablesSection()
        unused = {f"tables.{key}": value for key, value in given.items() if value != getattr(default, key)}
        if config.checkpoint.full_every > 1:
            unused["checkpoint.full_every"] = config.checkpoint.full_every
        for key, value in unused.items():
            raise UsageError(f"{key}: {quoted(value)}, but the model has no tables; leave it out")
        return
    weights = [name for name, rows in model.weights.first_rows().items() if rows is not None]
    for key in ("max_rows", "max_age", "admission") if config.tables.first_values == "weights" else ():
        if weights and (value := getattr(config.tables, key)) is not None:
            raise UsageError(
                f"tables.{key}: {quoted(value)}, but the rows of {weights[0]} begin with its values, all of them; "
                "expected tables.first_values = 'drawn', or a weight on the device 'meta'"
            )
    algorithm = config.algorithm
    if algorithm.exchange is not Exchange.SERVERS:
        instead = "'backup_sync' with backup = 0" if algorithm.name == "sync" else "one such as 'downpour'"
        raise UsageError(
            f"algorithm.name: {algorithm.name} exchanges by {algorithm.exchange.value}, but the rows of the model's "
            f"tables are on servers, expected {instead}"
        )
    tables = f"but the model has tables, such as {quoted(model.tables[0].name)}"
    config.topology.check_whole(tables)
    if algorithm.pattern(1).gives_up:
        key = next(key for key in ("restart", "stops") if getattr(algorithm, key, False))
        raise UsageError(f"algorithm.{key}: true, {tables}, whose rows are pushed with each gradient; expected false")
    if config.device.shards:
        raise UsageError(f"device.shards: true, {tables}, whose rows are in the servers' memory; expected false")


def check_model(checkpoint: Checkpoint, model: CompleteModel) -> None:
    """Check that a checkpoint is of a model with the same tensors and tables."""
    if checkpoint.size != model.layout.size:
        raise UsageError(f"{checkpoint.path}: {checkpoint.size} parameters, the model has {model.layout.size}")
    saved = {name: f"one of shape {shape}" for name, shape in checkpoint.shapes.items()}
    _check_names(checkpoint, "parameters", saved, {each.name: f"one of shape {each.shape}" for each in model.layout})
    _check_names(checkpoint, "constants", _described(checkpoint.arrays(CONSTANTS)), _described(model.constants()))
    if buffers := checkpoint.kept_by(0, BUFFERS):  # Not every algorithm's workers are in checkpoints.
        # A constant that a replica's model has changed is one of its buffers.
        counters, constants = _described(model.buffers()), _described(model.constants())
        changed = {name: constants[name] for name in buffers if name in constants}
        _check_names(checkpoint, "buffers", _described(buffers), changed | counters)
    _check_names(checkpoint, "other name", checkpoint.aliases, model.aliases)
    check_tables(checkpoint, model.tables)


def _described(arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    return {name: f"{array.dtype} of shape {array.shape}" for name, array in arrays.items()}


def _check_names(checkpoint: Checkpoint, what: str, saved: Mapping[str, str], present: Mapping[str, str]) -> None:
    for name in [*present, *saved]:
        found, expected = saved.get(name, "none"), present.get(name, "none")
        if found != expected:
            raise UsageError(f"{checkpoint.path}: {what} {name}: found {found}, the model has {expected}")


def check_order(checkpoint: Checkpoint, config: Config) -> None:
    """Check that a configuration takes samples in a checkpoint's order: its position would stand for others."""
    if checkpoint.position.at_beginning:
        return
    present = config.to_dict()
    data_keys = ("batch", "portion", "shuffle", "validation", "drop_last", "private", "split")
    keys = [("data", key) for key in data_keys] + [("run", "seed")]
    absent = {"shuffle": None, "validation": None, "drop_last": False, "private": False, "split": None}
    for section, key in keys:
        now = present[section].get(key)
        saved = checkpoint.sections.get(section, {}).get(key, absent.get(key, now))
        if saved != now:
            found, before = ("none" if value is None else value for value in (now, saved))
            raise UsageError(
                f"{section}.{key}: {found}, but {checkpoint.path} was saved with {before}, "
                "and its position in the data depends on that"
            )


def check_states(checkpoint: Checkpoint, config: Config, states: Collection[str]) -> None:
    """Check that shards which keep these vectors beside their parameters kept the same when a checkpoint was saved.

    An average may begin, and end, with any checkpoint.
    """
    if set(checkpoint.states) ^ set(states) <= {AVERAGE}:
        return
    rule = config.rule
    by = f"algorithm.name: {config.algorithm.name}" if rule is None else f"server.rule: {rule.name}"
    now, before = config.to_dict()["algorithm"], checkpoint.sections.get("algorithm", {})
    changed = [key for key in now if rule is None and key in before and now[key] != before[key]]
    if changed:
        key = changed[0]
        raise UsageError(
            f"algorithm.{key}: {now[key]}, but {checkpoint.path} was saved with {before[key]}, with which servers "
            "keep other vectors; model.initial starts a new run from its parameters"
        )
    saved, needed = (", ".join(names) or "nothing" for names in (checkpoint.states, states))
    raise UsageError(f"{by} keeps {needed}, {checkpoint.path} was saved with {saved}")


def check_data(checkpoint: Checkpoint, data: Mapping[str, str]) -> None:
    """Check that the training data are a checkpoint's; see `mpidl.job.checks`."""
    if checkpoint.position.at_beginning:
        return
    for name, saved in checkpoint.data.items():
        if not re.search("test|validation", name) and data.get(name, saved) != saved:
            raise UsageError(f"{name}: {data[name]}, but {checkpoint.path} was saved with {saved}")


def of_config(config: Config) -> dict[str, str]:
    """Return a configuration's keys, such as ``run.epochs``, with their values."""
    return {name: repr(value) for name, value in flat(config.to_dict()).items()}


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
