"""Compiling loops to machine code."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numba
from numba.core.caching import FunctionCache
from numba.core.runtime.nrt import rtsys


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
        dispatcher._cache = _Cache(function)  # type: ignore[no-untyped-call]
    return dispatcher  # type: ignore[no-any-return]


class _Cache(FunctionCache):
    """Numba's cache, less what only a compilation needs: importing that takes longer than all else of a start."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the machine code for a signature, or None if there is none."""
        # What the code of any function may call.
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]
