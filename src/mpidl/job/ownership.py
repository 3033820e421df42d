"""Which training samples belong to which replica, where they belong to replicas at all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mpidl.config import Config
from mpidl.data import Dataset
from mpidl.data.labels import Deal
from mpidl.data.sampling import OwnPosition
from mpidl.errors import UsageError
from mpidl.storage.checkpoint import Checkpoint


def check_ownership(config: Config, dataset: Dataset) -> None:
    """Check that an algorithm and data can do with samples that belong to replicas, if they do."""
    key, name = config.data.owned, config.algorithm.name
    if key is None:
        if dataset.owners is not None:
            raise UsageError("data.private: false, but each data source belongs to one worker, expected true")
        return
    if config.data.private and dataset.owners is None:
        raise UsageError(
            f"{key}, but the source {dataset.name} gives one dataset, expected a list of one for each worker"
        )
    if config.data.split is not None and dataset.owners is not None:
        raise UsageError(f"{key}, but each data source belongs to one worker; leave it out")
    if config.algorithm.coordinated:
        raise UsageError(f"{key}, but {name} lets any worker compute any portion, expected another algorithm")
    if dataset.order is not None or dataset.kept is not None:
        what = "a sampler" if dataset.order is not None else "a state"
        raise UsageError(
            f"{key}, but the training data have {what}, which isn't supported if samples belong to workers"
        )


def check_number(config: Config, dataset: Dataset, replicas: int) -> None:
    """Check that there are as many replicas as there are workers to which the data belong, if they do."""
    if dataset.owners is not None and (owners := int(dataset.owners.max()) + 1) != replicas:
        raise UsageError(
            f"{config.data.owned}, with data of {owners} workers, but there are {replicas}, expected as many"
        )


def shares(config: Config, dataset: Dataset, replicas: int) -> list[NDArray[np.int64]] | None:
    """Return the indices of the training samples of each replica; None if any replica may have any sample.

    Raise UsageError if a replica would have none.
    """
    data, key = config.data, config.data.owned
    if key is None:
        return None
    if data.split is not None:
        labels = dataset.train.labels(0, dataset.train.samples)
        if labels is None or labels.ndim > 1:
            raise UsageError(
                f"{key}, but the training data have no labels, several labels per sample, or labels that are known "
                "only when they are read"
            )
        try:
            return Deal.parse(data.split).shares(labels, replicas, config.run.seed)
        except UsageError as error:
            raise UsageError(f"{key}: {error}") from None
    check_number(config, dataset, replicas)
    assert dataset.owners is not None
    counts = np.bincount(dataset.owners)
    if not counts.all():
        raise UsageError(f"{key}, but worker {counts.argmin()} has no training samples, expected at least one")
    return np.split(np.argsort(dataset.owners, kind="stable"), np.cumsum(counts)[:-1])


def own_positions(checkpoint: Checkpoint | None, replicas: int) -> Sequence[OwnPosition | None]:
    """Return how far the replicas are in their own data; UsageError if the checkpoint's were others."""
    if checkpoint is None or checkpoint.position.at_beginning or checkpoint.position.owners is None:
        return [None] * replicas
    owners = checkpoint.position.owners
    if len(owners) != replicas:
        raise UsageError(
            f"{checkpoint.path}: saved with data that belong to {len(owners)} workers, but there are {replicas} now, "
            "expected as many"
        )
    return owners
