"""The samples of one step."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Batch(NamedTuple):
    """Samples that a gradient or an evaluation is taken over.

    Attributes
    ----------
    inputs : array (n, *input_shape), float32 or float64
        NumPy or CuPy.
    targets : array (n,) int64 of class ids, or (n, outputs) of floats
        Of the same array package as `inputs`.
    number : int
        Which minibatch of the run this is: what a model does at random depends on it.
    """

    inputs: Any
    targets: Any
    number: int = 0


class Minibatch(NamedTuple):
    """Which samples a step takes.

    Attributes
    ----------
    indices : array (n,) of int64
    number : int
        Of all the run's minibatches.
    epoch : int
        From 0.
    """

    indices: NDArray[np.int64]
    number: int
    epoch: int
