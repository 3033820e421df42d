"""Losses, means over the batch with their gradients, and regularisation: an L2 penalty and gradient clipping.

Targets are class ids (integers of shape (n,)), which stand for one-hot rows, or floats of the outputs' shape
(n, outputs). Losses allocate nothing larger than vectors of n elements.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, nan, sqrt
from typing import Any, ClassVar

import numpy as np

from mpidl.data.batch import Batch
from mpidl.errors import UsageError
from mpidl.metrics.metric import PLAIN, Scoring, without_nan
from mpidl.nn.activations import sigmoid
from mpidl.nn.model import Evaluation
from mpidl.parameters.ranges import Range
from mpidl.rules import Sgd
from mpidl.schema import Checked, Fraction, NonNegative, Positive


def are_classes(targets: Any) -> bool:
    """Return whether targets are class ids rather than rows of floats."""
    return bool(targets.dtype.kind in "iu")


def _subtract(xp: Any, values: Any, targets: Any) -> None:
    """Subtract the rows of targets from `values` (n, outputs), in place."""
    if are_classes(targets):
        values[xp.arange(len(values)), targets] -= 1
    else:
        xp.subtract(values, targets, out=values)


def _inner(xp: Any, values: Any, targets: Any) -> Any:
    """Return the inner products (n,) of the rows of `values` (n, outputs) and of the targets."""
    if are_classes(targets):
        return values[xp.arange(len(values)), targets]
    return xp.einsum("ij,ij->i", values, targets)


class Loss(ABC):
    """A loss function of a network's outputs (n, outputs)."""

    name: ClassVar[str]

    def scoring(self, several_labels: bool) -> Scoring:
        """Return how the loss reads outputs and targets; `several_labels` if targets are rows of floats."""
        return PLAIN

    @abstractmethod
    def loss_and_gradient(
        self, xp: Any, outputs: Any, targets: Any, gradient: Any, samples: int | None = None
    ) -> float:
        """Return the mean loss over the batch, or the part of that mean for some of the batch's samples.

        Parameters
        ----------
        xp
            NumPy or CuPy.
        outputs : array (n, outputs)
            Outputs of the network's last layer; not changed.
        targets : array (n,) of integers, or (n, outputs) of floats
            Class ids, or target values.
        gradient : array (n, outputs)
            Overwritten with the gradient of the mean loss with respect to `outputs`.
        samples : int, optional
            Number of samples of the whole batch; n by default.
        """

    def mean(self, xp: Any, outputs: Any, targets: Any, gradient: Any, samples: int | None = None) -> float:
        """Return the same as `loss_and_gradient`; UsageError if the targets don't fit the outputs."""
        expected = outputs.shape[:1] if are_classes(targets) else outputs.shape
        if targets.shape != expected:
            raise UsageError(
                f"targets {targets.shape} of {targets.dtype}, outputs {outputs.shape} "
                f"take integers {outputs.shape[:1]} or floats {outputs.shape}"
            )
        try:
            if xp is np and are_classes(targets) and targets.min() < 0:
                raise IndexError
            return self.loss_and_gradient(xp, outputs, targets, gradient, samples)
        except IndexError:
            found = f"labels {targets.min()} to {targets.max()}"
            raise UsageError(
                f"data: {found}, the last layer has {outputs.shape[1]} units, one for each class"
            ) from None

    def evaluate(self, xp: Any, batch: Batch, outputs: Any, gradient: Any) -> Evaluation:
        """Evaluate the outputs for a batch; `gradient` is overwritten."""
        loss = self.mean(xp, outputs, batch.targets, gradient) * batch.total
        correct = self.correct(xp, outputs, batch.targets)
        return Evaluation(loss, correct, outputs, counted=float(len(outputs)))

    def correct(self, xp: Any, outputs: Any, targets: Any) -> int | float:
        """Return the number of samples whose arg-max matches the target's."""
        predictions = outputs.argmax(axis=1)
        if are_classes(targets):
            right = predictions == targets
        else:
            right = targets[xp.arange(len(targets)), predictions] == targets.max(axis=1)
        return int((right & without_nan(outputs)).sum())


@dataclass(frozen=True)
class SoftmaxCrossEntropy(Checked, Loss):
    """Softmax cross-entropy: minus the inner product of the targets and log softmax(outputs).

    Parameters
    ----------
    smoothing : float
        Label smoothing: targets t of K classes become ``(1 - smoothing) t + smoothing / K`` (Szegedy et al. 2016,
        Rethinking the inception architecture, section 7).

    Notes
    -----
    The highest output of a row is subtracted from it first, so that no exponential overflows. A sample's
    loss is ``-sum(t * log p)`` with ``p = exp(z) / sum(exp(z))`` and its gradient ``sum(t) * p - t`` (Bishop
    2006, Pattern Recognition and Machine Learning, equations 4.108 and 4.109, there for rows t that sum to
    one).
    """

    name: ClassVar[str] = "softmax_cross_entropy"

    smoothing: Fraction = 0.0

    def scoring(self, several_labels: bool) -> Scoring:
        return Scoring(exclusive=True)

    def loss_and_gradient(
        self, xp: Any, outputs: Any, targets: Any, gradient: Any, samples: int | None = None
    ) -> float:
        total = 1 if are_classes(targets) else targets.sum(axis=1)
        xp.subtract(outputs, outputs.max(axis=1, keepdims=True), out=gradient)
        chosen = _inner(xp, gradient, targets)
        if self.smoothing:
            chosen = (1 - self.smoothing) * chosen + self.smoothing * total * gradient.mean(axis=1)
        xp.exp(gradient, out=gradient)
        normaliser = gradient.sum(axis=1)
        samples = samples or len(gradient)
        loss = (total * xp.log(normaliser) - chosen).sum() / samples
        xp.multiply(gradient, (total / normaliser)[:, None], out=gradient)
        if self.smoothing:
            share = self.smoothing * total / gradient.shape[1]
            xp.subtract(gradient, share if are_classes(targets) else share[:, None], out=gradient)
            xp.multiply(gradient, 1 / (1 - self.smoothing), out=gradient)
        _subtract(xp, gradient, targets)
        xp.multiply(gradient, (1 - self.smoothing) / samples, out=gradient)
        return float(loss)


class OneVsAllLogistic(Loss):
    """Logistic regression for each output separately, summed over the outputs.

    A sample's loss is ``sum(log(1 + exp(z)) - t * z)`` and its gradient ``sigmoid(z) - t`` (Bishop 2006,
    equations 4.90 and 4.91), with ``log(1 + exp(z)) = max(z, 0) + log(1 + exp(-|z|))``, which can't
    overflow.
    """

    name = "one_vs_all_logistic"

    def loss_and_gradient(
        self, xp: Any, outputs: Any, targets: Any, gradient: Any, samples: int | None = None
    ) -> float:
        xp.clip(outputs, 0, inf, out=gradient)
        total = float(gradient.sum()) - float(_inner(xp, outputs, targets).sum())
        xp.absolute(outputs, out=gradient)
        xp.negative(gradient, out=gradient)
        xp.exp(gradient, out=gradient)
        xp.log1p(gradient, out=gradient)
        total += float(gradient.sum())
        xp.copyto(gradient, outputs)
        sigmoid(xp, gradient)
        _subtract(xp, gradient, targets)
        samples = samples or len(gradient)
        xp.multiply(gradient, 1 / samples, out=gradient)
        return total / samples

    def scoring(self, several_labels: bool) -> Scoring:
        return Scoring("exact match") if several_labels else super().scoring(several_labels)

    def correct(self, xp: Any, outputs: Any, targets: Any) -> int | float:
        """Return the number of correct samples; in a row of targets, several may be 1, and all must be right."""
        if are_classes(targets):
            return super().correct(xp, outputs, targets)
        return int((((outputs > 0) == (targets > 0.5)).all(axis=1) & without_nan(outputs)).sum())


class MeanSquaredError(Loss):
    """Squared difference of outputs and targets, averaged over the outputs."""

    name = "mean_squared_error"

    def loss_and_gradient(
        self, xp: Any, outputs: Any, targets: Any, gradient: Any, samples: int | None = None
    ) -> float:
        xp.copyto(gradient, outputs)
        _subtract(xp, gradient, targets)
        size = (samples or len(gradient)) * gradient.shape[1]
        loss: float = float(xp.vdot(gradient, gradient)) / size
        xp.multiply(gradient, 2 / size, out=gradient)
        return loss

    def correct(self, xp: Any, outputs: Any, targets: Any) -> int | float:
        """Return the number of correct samples; NaN if the targets are floats."""
        return super().correct(xp, outputs, targets) if are_classes(targets) else nan


LOSSES: dict[str, type[Loss]] = {loss.name: loss for loss in (SoftmaxCrossEntropy, OneVsAllLogistic, MeanSquaredError)}


#: Adds a multiple of one vector to another.
ADDING = Sgd()


@dataclass(frozen=True)
class Regularisation(Checked):
    """L2 penalty and gradient clipping, keys of the ``[model]`` section.

    Attributes
    ----------
    l2 : float
        Adds l2 / 2 times the sum of the squared weights to the loss. Only tensors named ``weight`` count, not biases.
    clip : float, optional
        Maximum Euclidean norm of the gradient, which is scaled down if necessary.
    """

    l2: NonNegative = 0.0
    clip: Positive | None = None

    def penalise(self, weights: Sequence[Range], parameters: Any, gradient: Any) -> float:
        """Return the penalty of some ranges of the parameters (size,), and add its gradient in place."""
        loss = 0.0
        for part in weights if self.l2 else ():
            own = parameters[slice(*part)]
            ADDING.update(gradient[slice(*part)], (), own, 1, -self.l2)
            loss += self.l2 / 2 * float(own @ own)
        return loss

    def squared_norm(self, trained: Sequence[Range], gradient: Any) -> float:
        """Return the squared norm of the gradient in some ranges, 0 if nothing is clipped."""
        if self.clip is None:
            return 0.0
        parts = [gradient[slice(*part)] for part in trained]
        return sum(float(part @ part) for part in parts)

    def clip_norm(self, trained: Sequence[Range], gradient: Any, squared_norm: float) -> None:
        """Scale the gradient in some ranges down, in place, if the norm of the whole gradient is too large."""
        norm = sqrt(squared_norm)
        if self.clip is not None and norm > self.clip:
            for part in trained:
                own = gradient[slice(*part)]
                own *= self.clip / norm
