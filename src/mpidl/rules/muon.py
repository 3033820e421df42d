"""Muon: momentum whose matrices are orthogonalised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar, Literal

from mpidl.rules.optimizers import Adamw
from mpidl.rules.rule import Rule
from mpidl.rules.tensors import TensorRule
from mpidl.schema import Count, Fraction, NonNegative, Positive

#: Coefficients of the quintic iteration, which maximise its slope at 0.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
#: Added to the norm by which a matrix is divided first.
EPSILON = 1e-7


@dataclass(frozen=True)
class Muon(TensorRule):
    """Muon for hidden matrices, and AdamW for all other parameters.

    The momentum of a matrix is ``b = momentum * b + g``. Its direction, ``g + momentum * b`` or, without `nesterov`,
    ``b``, is divided by its Frobenius norm, and its singular values are brought near 1 by `iterations` of the
    Newton-Schulz iteration ``x = a x + (b y + c y y) x`` with ``y = x x^T``. Then
    ``w = (1 - rate * weight_decay) * w - rate * scale * x``. A gradient's weight multiplies the rate of its step.

    Of a matrix, the first state is the momentum, and the second one the direction, which is complete when the whole
    gradient has arrived.

    Parameters
    ----------
    rate
        Learning rate of matrices.
    momentum
        Fraction of the momentum that is kept. With ``"increasing"`` the momentum is ``(1 - a_k) b + a_k g`` up to a
        factor at update k = 0, 1, ..., with a_k = 1 / sqrt(k), and a_0 = 1: that of `Ringmaster`'s `adaptive` schedule.
    nesterov
        Whether the direction looks ahead.
    weight_decay
        Weight decay per unit of rate, of matrices and of all other parameters.
    scale
        ``"rms"``: 0.2 sqrt(max(m, n)), by which steps are as large as AdamW's, and rates for AdamW serve. ``"shape"``:
        sqrt(max(1, outputs / inputs)).
    iterations
        Number of iterations.
    rate_adamw
        Learning rate of all other parameters.

    References
    ----------
    K. Jordan et al. (2024), Muon: an optimizer for hidden layers in neural networks.
    J. Liu et al. (2025), Muon is scalable for LLM training, section 2.2: the scale ``"rms"``. The increasing momentum
    is that of Ringmaster's extension to linear minimisation oracles.
    """

    name: ClassVar[str] = "muon"
    states: ClassVar[tuple[str, ...]] = Adamw.states

    rate: Positive = 0.02
    momentum: Fraction | Literal["increasing"] = 0.95
    nesterov: bool = True
    weight_decay: NonNegative = 0.01
    scale: Literal["rms", "shape"] = "rms"
    iterations: Count = 5
    rate_adamw: Positive = 0.001

    @property
    def other(self) -> Rule:
        return Adamw(self.rate_adamw, weight_decay=self.weight_decay)

    def coefficients(self, step: int, rate: float, weight: float = 1.0) -> tuple[float, ...]:
        kept = self.momentum
        if isinstance(kept, str):
            kept = (sqrt(step - 1) - 1) / sqrt(step - 2) if step > 2 else 0.0
        return (kept, 1.0, kept) if self.nesterov else (kept, 0.0, 1.0)

    @staticmethod
    def scalar(
        w: float, b: float, direction: float, g: float, momentum: float, own: float, ahead: float
    ) -> tuple[float, ...]:
        b = momentum * b + g
        return w, b, own * g + ahead * b

    def step(self, matrix: Any, states: Sequence[Any], rate: float, workspace: Any, transposed: bool) -> None:
        rows, columns = matrix.shape
        found = orthogonalised(states[1], self.iterations, workspace)
        outputs, inputs = (columns, rows) if transposed else (rows, columns)
        scale = 0.2 * sqrt(max(rows, columns)) if self.scale == "rms" else sqrt(max(1.0, outputs / inputs))
        matrix *= 1 - rate * self.weight_decay
        found *= rate * scale
        matrix -= found

    def workspace_size(self, rows: int, columns: int) -> int:
        return 2 * rows * columns + 2 * min(rows, columns) ** 2

    def operations(self, rows: int, columns: int) -> float:
        small = min(rows, columns)
        return self.iterations * (4.0 * small**2 * max(rows, columns) + 2.0 * small**3)


def orthogonalised(matrix: Any, iterations: int, workspace: Any) -> Any:
    """Return a matrix (m, n) with its singular values near 1, in the workspace.

    Parameters
    ----------
    workspace : array
        A vector of at least 2 m n + 2 min(m, n)^2 elements.
    """
    import numpy as np

    rows, columns = matrix.shape
    wide = matrix if rows <= columns else matrix.T
    small, large = wide.shape
    vectors, squares = workspace[: 2 * small * large], workspace[2 * small * large :][: 2 * small * small]
    x, product = vectors.reshape(2, small, large)
    gram, square = squares.reshape(2, small, small)
    a, b, c = COEFFICIENTS
    flat = matrix.reshape(-1)
    np.multiply(wide, 1 / (sqrt(float(flat @ flat)) + EPSILON), out=x)
    for _ in range(iterations):
        np.matmul(x, x.T, out=gram)
        np.matmul(gram, gram, out=square)
        square *= c
        gram *= b
        square += gram
        np.matmul(square, x, out=product)
        x *= a
        x += product
    return x if rows <= columns else x.T
