"""Compilation of loops to machine code."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numba


def jit(function: Callable[..., Any], reassociate: bool = False) -> Callable[..., Any]:
    """Return a function compiled by Numba: for each dtype at its first call, or loaded from the cache.

    The cache is beside the function's file or, if the package is read-only, in the user's cache directory.

    Parameters
    ----------
    function
        Loops over arrays.
    reassociate
        Whether the order of sums may change, which allows them to be vectorised. It then depends only on the number of
        terms.
    """
    # Without NumPy's error model each division is checked, and loops aren't vectorised. Without fastmath, vector
    # instructions round like the scalar ones for the remainder.
    dispatcher: Any = numba.njit(
        function, error_model="numpy", nogil=True, fastmath={"reassoc"} if reassociate else False
    )
    with suppress(RuntimeError):  # without a writable directory for the cache, each start compiles
        dispatcher.enable_caching()
    return dispatcher  # type: ignore[no-any-return]
