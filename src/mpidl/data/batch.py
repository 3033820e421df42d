"""Batches: the samples of one step."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Batch(NamedTuple):
    """The samples of a gradient or an evaluation.

    Attributes
    ----------
    inputs : array (n, *input_shape), float32 or float64
        NumPy or CuPy; or whatever the collate function of a dataset makes, see `mpidl.data.Indexed`.
    targets : array (n,) int64 of class ids, or (n, outputs) of floats
        In the same array package as `inputs`; or whatever the collate function makes.
    number : int
        Ordinal of the minibatch in the run, which seeds whatever a model does at random.
    weight : float, optional
        What the batch counts beside others, such as its number of tokens or atoms; its number of samples by default.
        Losses are means over it.
    """

    inputs: Any
    targets: Any
    number: int = 0
    weight: float | None = None

    @property
    def total(self) -> float:
        """What the batch counts beside others: its weight or, without one, its number of samples."""
        return float(len(self.inputs)) if self.weight is None else self.weight


class Minibatch(NamedTuple):
    """The indices of the samples of one step.

    Attributes
    ----------
    indices : array (n,) of int64
    number : int
        Ordinal among all minibatches of the run.
    epoch : int
        Epoch, from 0.
    """

    indices: NDArray[np.int64]
    number: int
    epoch: int
