"""Compiling loops to machine code."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numba


def jit(function: Callable[..., Any], reassociate: bool = False) -> Callable[..., Any]:
    """Return a function compiled by Numba: for each dtype at its first call, or loaded from the cache.

    The cache is beside the function's file or, where the package is read-only, in the user's cache directory.

    Parameters
    ----------
    function
        Loops over arrays.
    reassociate
        Whether sums may be taken in another order, which lets a loop that sums be vectorised: the order then depends
        on how many terms there are, and on nothing else.
    """
    # Without NumPy's error model each division is checked, and loops aren't vectorised. Without fastmath a
    # vector instruction rounds as the scalar one for the remainder does.
    dispatcher: Any = numba.njit(
        function, error_model="numpy", nogil=True, fastmath={"reassoc"} if reassociate else False
    )
    with suppress(RuntimeError):  # Where no directory for the cache is writable, each start compiles.
        dispatcher.enable_caching()
    return dispatcher  # type: ignore[no-any-return]
