"""Losses of PyTorch by name, and the number of correct predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from mpidl.errors import UsageError, nearest, quoted
from mpidl.nn.model import correct_classes, share_of_total

#: Losses of `torch.nn.functional`, by name.
NAMES = [
    name
    for name in dir(functional)
    if name.endswith("_loss") or name in ("cross_entropy", "kl_div") or name.startswith("binary_cross_entropy")
]
#: Losses of targets with the outputs' shape; other targets would be broadcast silently.
ELEMENTWISE = (
    *(functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, functional.huber_loss),
    *(nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss),
)
#: Losses with the classes along the second axis.
CLASSES = (functional.cross_entropy, functional.nll_loss, nn.CrossEntropyLoss, nn.NLLLoss)
#: Losses of several labels.
LABELS = (functional.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss)

Loss = Callable[[Any, Any], torch.Tensor]


def is_one_of(losses: Sequence[Any], loss: Loss) -> bool:
    """Return whether a loss is one of these functions and classes, or an instance of such a class."""
    return loss in losses or type(loss) in losses


def by_name(name: str) -> Loss:
    """Return a loss of `torch.nn.functional`; UsageError if there is none of that name."""
    if name not in NAMES:
        known = f"a loss of torch.nn.functional, or module:function{nearest(name, NAMES)}"
        raise UsageError(f"model.loss: {quoted(name)}, expected {known}")
    loss: Loss = getattr(functional, name)
    return loss


def accuracy_name(loss: Loss) -> str:
    """Return the name of the share of correct samples."""
    return "exact match" if is_one_of(LABELS, loss) else "accuracy"


def correct(loss: Loss, outputs: Any, targets: Any, total: float) -> float:
    """Return the share of correct predictions, times the batch's weight; NaN where it has no meaning.

    With class ids, the prediction is the largest output; ids below 0 don't count. With binary cross-entropy, a sample
    is correct if all its labels are.
    """
    if not isinstance(outputs, torch.Tensor) or not isinstance(targets, torch.Tensor):
        return float("nan")
    if is_one_of(LABELS, loss) and outputs.shape == targets.shape:
        right = ((outputs > 0) == (targets > 0.5)).flatten(1).all(1)
        return share_of_total(right.sum().item(), len(right), total)
    axis = _class_axis(loss, outputs, targets)
    if axis is None or targets.is_floating_point():
        return float("nan")
    return correct_classes(outputs, targets, axis, total)


def _class_axis(loss: Loss, outputs: torch.Tensor, targets: torch.Tensor) -> int | None:
    if outputs.dim() != targets.dim() + 1:
        return None
    if outputs.shape[:-1] == targets.shape and not is_one_of(CLASSES, loss):
        return -1
    return 1 if outputs.shape[:1] + outputs.shape[2:] == targets.shape else None
