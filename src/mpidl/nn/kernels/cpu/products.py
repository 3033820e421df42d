"""Products of matrices, by NumPy's BLAS."""

from __future__ import annotations

from typing import Any

import numpy as np


def matmul(a: Any, b: Any, out: Any, add: bool = False) -> None:
    """Set `out` to the product of two matrices or of pairs of matrices, or add the product to `out`.

    Parameters
    ----------
    a : array (n, k) or (pairs, n, k)
    b : array (k, m) or (pairs, k, m)
        Same dtype. Rows or columns of each matrix are contiguous.
    out : array (n, m) or (pairs, n, m)
        Its rows are contiguous.
    add : bool
        Whether the product is added to `out`.
    """
    if add:
        np.add(out, np.matmul(a, b), out=out)
    else:
        np.matmul(a, b, out=out)
