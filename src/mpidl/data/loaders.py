"""Loaders of PyTorch as data."""

from __future__ import annotations

import sys
from typing import Any

from mpidl.data.indexed import Indexed
from mpidl.errors import UsageError, kind_of

#: What an `Indexed` has, in the order in which loaders are given.
SPLITS = ("train", "test", "validation")


def of_loaders(data: Any) -> tuple[Any, dict[str, Any]]:
    """Return data as they were given, or those of a ``torch.utils.data.DataLoader`` or of a tuple of them.

    A tuple has a loader of training data, one of test data and, perhaps, one of validation data. The training loader's
    workers, collate function and sampler stay; its batches are keywords of a training, which are returned, too.

    Raises
    ------
    UsageError
        A loader's samples have no numbers, or it has a sampler of batches.
    """
    loader = getattr(sys.modules.get("torch.utils.data"), "DataLoader", None)
    loaders = data if isinstance(data, tuple) else (data,)
    if loader is None or not loaders or not all(isinstance(each, loader) for each in loaders):
        return data, {}
    if len(loaders) > len(SPLITS):
        raise UsageError(f"data: {len(loaders)} loaders, expected at most {len(SPLITS)}: {', '.join(SPLITS)}")
    for each in loaders:
        if not hasattr(each.dataset, "__getitem__") or not hasattr(each.dataset, "__len__"):
            what = kind_of(each.dataset)
            raise UsageError(f"data: a DataLoader of {what}, expected a dataset with a length and __getitem__")
        if each.batch_size is None:
            raise UsageError("data: a DataLoader with a batch_sampler or without batches, expected a batch_size")
    train = loaders[0]
    in_turn = type(train.sampler).__name__ == "RandomSampler" and not train.sampler.replacement
    splits = dict(zip(SPLITS, (each.dataset for each in loaders), strict=False))
    found = Indexed(
        **splits, collate=train.collate_fn, workers=train.num_workers, sampler=None if in_turn else train.sampler
    )
    return found, {"batch": train.batch_size, "drop_last": train.drop_last}
