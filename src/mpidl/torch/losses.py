"""Losses of PyTorch by name, what a loss counts in a batch, and the number of correct predictions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from mpidl.errors import UsageError, nearest, quoted
from mpidl.metrics.metric import Scoring, class_axis
from mpidl.nn.evaluation import correct_classes, scaled
from mpidl.nn.model import Evaluation

#: Losses of `torch.nn.functional`, by name.
NAMES = [
    name
    for name in dir(functional)
    if name.endswith("_loss") or name in ("cross_entropy", "kl_div") or name.startswith("binary_cross_entropy")
]
#: Losses of one class per target, with the classes along the second axis; means over targets, weighed by class.
CLASSES = (functional.cross_entropy, functional.nll_loss, nn.CrossEntropyLoss, nn.NLLLoss)
#: Those of them whose targets may be probabilities of classes.
CROSS_ENTROPY = (functional.cross_entropy, nn.CrossEntropyLoss)
#: Losses of several labels, by logits and by probabilities.
LOGITS = (
    *(functional.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss, nn.MultiLabelSoftMarginLoss),
    *(functional.multilabel_soft_margin_loss, functional.soft_margin_loss, nn.SoftMarginLoss),
)
PROBABILITIES = (functional.binary_cross_entropy, nn.BCELoss)
#: Losses of floats with the outputs' shape.
FLOATS = (
    *(functional.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss, *PROBABILITIES),
    *(functional.huber_loss, nn.HuberLoss, functional.kl_div, nn.KLDivLoss),
)
#: Losses of targets with the outputs' shape; other targets would be broadcast silently.
ELEMENTWISE = (
    *(functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, functional.poisson_nll_loss),
    *(nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.PoissonNLLLoss, *LOGITS, *FLOATS),
)

Loss = Callable[[Any, Any], torch.Tensor]


def is_one_of(losses: Sequence[Any], loss: Loss) -> bool:
    """Return whether a loss is one of these functions, or of one of these classes, with or without given arguments."""
    own = _bare(loss)
    return own in losses or isinstance(own, tuple(each for each in losses if isinstance(each, type)))


def _computes_as(losses: Sequence[Any], loss: Loss) -> bool:
    """Return whether a loss is one of these, and not of a derived class with a computation of its own."""
    own = _bare(loss)
    forward = getattr(type(own), "forward", None)
    return own in losses or forward in [vars(each).get("forward", each) for each in losses if isinstance(each, type)]


def mismatch(loss: Loss, outputs: Any, targets: Any) -> str | None:
    """Return what of the targets a loss of PyTorch can't take, and what it expects; None if it can, or isn't known."""
    if not isinstance(outputs, torch.Tensor) or not isinstance(targets, torch.Tensor):
        return None
    shape, found, dtype = tuple(outputs.shape), tuple(targets.shape), str(targets.dtype).removeprefix("torch.")
    ids, expected = (*shape[:1], *shape[2:]), None
    if _computes_as(ELEMENTWISE, loss) and found != shape:
        expected = "the same"
    elif _computes_as(FLOATS, loss) and not targets.is_floating_point():
        expected = f"floats, not {dtype},"
    elif _computes_as(CLASSES, loss) and len(shape) > 1 and (found != ids or dtype not in ("int64", "uint8")):
        rows = _computes_as(CROSS_ENTROPY, loss)
        if not (rows and found == shape and targets.is_floating_point()):
            expected = f"int64 of shape {ids}{' or floats of the same' if rows else ''}, not {dtype},"
    if expected is None:
        return None
    name = getattr(_bare(loss), "__name__", _bare(loss))
    return f"outputs of shape {shape} and targets of shape {found}, expected {expected} for {name}"


def _bare(loss: Any) -> Any:
    """Return a loss without the arguments that `functools.partial` gives."""
    return _bare(loss.func) if isinstance(loss, partial) else loss


def _argument(loss: Any, name: str) -> Any:
    """Return an argument, such as ``ignore_index``, that a loss has been given or has by default; None without it."""
    if isinstance(loss, partial):
        return loss.keywords[name] if name in loss.keywords else _argument(loss.func, name)
    if hasattr(loss, name):
        return getattr(loss, name)
    try:
        parameter = inspect.signature(loss).parameters.get(name)
    except (TypeError, ValueError):  # such as functions of C++
        return None
    return None if parameter is None or parameter.default is parameter.empty else parameter.default


def by_name(name: str) -> Loss:
    """Return a loss of `torch.nn.functional`; UsageError if there is none of that name."""
    if name not in NAMES:
        known = f"a loss of torch.nn.functional, or module:function{nearest(name, NAMES)}"
        raise UsageError(f"model.loss: {quoted(name)}, expected {known}")
    loss: Loss = getattr(functional, name)
    return loss


def scoring(loss: Loss) -> Scoring:
    """Return how a loss reads outputs and targets, also of one's own if it has an ``ignore_index``."""
    if is_one_of(LOGITS, loss) or is_one_of(PROBABILITIES, loss):
        return Scoring("exact match", threshold=0.5 if is_one_of(PROBABILITIES, loss) else 0.0)
    ignored, classes = _argument(loss, "ignore_index"), is_one_of(CLASSES, loss)
    left_out = [ignored] if isinstance(ignored, int) else []
    if classes and (weight := _argument(loss, "weight")) is not None:
        left_out += (weight == 0).nonzero().flatten().tolist()
    return Scoring(exclusive=classes, axis=1 if classes else None, ignored=tuple(left_out))


def is_sum(loss: Loss) -> bool:
    """Return whether a loss is the sum over the batch rather than the mean."""
    return bool(_argument(loss, "reduction") == "sum")


def weight(loss: Loss, targets: Any, samples: float) -> float:
    """Return the weight of targets in the mean over them and others: the number of samples unless the loss weighs them.

    Cross-entropy leaves ids out and weighs the others by class; a loss of one's own with an ``ignore_index`` leaves
    that out.
    """
    known, ignored = _computes_as(CLASSES, loss), _argument(loss, "ignore_index")
    ids_given = isinstance(targets, torch.Tensor) and not targets.is_floating_point()
    if not ids_given or not (known or isinstance(ignored, int)):
        return samples
    of_classes = _argument(loss, "weight") if known else None
    if of_classes is None and targets.device.type == "cpu":
        ids = targets.numpy()
        return float(ids.size if ignored < 0 <= ids.min(initial=0) else np.count_nonzero(ids != ignored))
    counted = targets[targets != ignored]
    return float(len(counted) if of_classes is None else of_classes[counted].sum())


def sums(loss: Loss, value: float, targets: Any, total: float, own: float | None) -> tuple[float, float]:
    """Return the sum of the losses of a batch, and what their mean is over, given the loss of the batch.

    The batch has the weight `total`, perhaps its `own`.
    """
    divisor = total if own is not None else weight(loss, targets, total)
    # The mean over no targets is NaN, and counts nothing.
    return (value if is_sum(loss) else value * divisor if divisor else 0.0), divisor


def evaluation(loss: Loss, value: float, outputs: Any, targets: Any, total: float, own: float | None) -> Evaluation:
    """Return the evaluation of a batch with this value of the loss; see `sums`."""
    summed, divisor = sums(loss, value, targets, total, own)
    right, counted = _correct(scoring(loss), outputs, targets, own)
    return Evaluation(summed, right, outputs, divisor, counted)


def _correct(scoring: Scoring, outputs: Any, targets: Any, weight: float | None) -> tuple[float, float | None]:
    """Return the numbers of correct predictions and of all; NaN where correctness has no meaning.

    The predicted class is the one with the largest output; several labels must all be right.
    """
    unknown = float("nan"), None
    if not isinstance(outputs, torch.Tensor) or not isinstance(targets, torch.Tensor):
        return unknown
    if scoring.accuracy == "exact match" and outputs.shape == targets.shape:
        right = ((outputs > scoring.threshold) == (targets > 0.5)) & (outputs == outputs)
        right = right.reshape(len(outputs), -1).all(1)
        return scaled(float(right.sum()), len(right), weight)
    if scoring.exclusive and outputs.shape == targets.shape and outputs.dim() > 1:
        targets = targets.argmax(1)
    axis = class_axis(scoring.axis, outputs.shape, targets.shape)
    if axis is None or targets.is_floating_point() or not outputs.dim():
        return unknown
    return correct_classes(outputs, targets, axis, weight, scoring)
