"""Compilation of loops to machine code."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property
from typing import Any


class Compiled:
    """A function of Numba that `make` makes at its first call, or when compiled code that calls it is made.

    Importing Numba takes as long as all other imports of a rank, and ranks that compute nothing do without it.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    @cached_property
    def made(self) -> Any:
        return self._make()

    def __call__(self, *arguments: Any) -> Any:
        return self.made(*arguments)

    @property
    def _numba_type_(self) -> Any:
        """The type of the function in compiled code."""
        from numba.core.registry import cpu_target

        made, context = self.made, cpu_target.typing_context
        context.refresh()  # with an intrinsic that has just been made
        return context.resolve_value_type(made)


def jit(function: Callable[..., Any], reassociate: bool = False) -> Compiled:
    """Return loops over arrays compiled by Numba: for each dtype at the first call, or loaded from the cache.

    The cache is beside the function's file or, if the package is read-only, in the user's cache directory. If sums may
    `reassociate`, they are vectorised. Their order then depends only on the number of terms.
    """

    def make() -> Any:
        import numba

        # Without NumPy's error model each division is checked, and loops aren't vectorised. Without fastmath, vector
        # instructions round like the scalar ones for the remainder.
        fast = {"reassoc"} if reassociate else False
        dispatcher: Any = numba.njit(function, error_model="numpy", nogil=True, fastmath=fast)
        with suppress(RuntimeError):  # without a writable directory for the cache, each start compiles
            dispatcher._cache = _cache()(function)
        return dispatcher

    return Compiled(make)


@cache
def _cache() -> Any:
    """Return the class of a function's cache: Numba's, but it loads without the half a second of imports to compile."""
    from numba.core.caching import FunctionCache
    from numba.core.runtime.nrt import rtsys

    class Cache(FunctionCache):
        def load_overload(self, signature: Any, context: Any) -> Any:
            rtsys.initialize(context)
            with self._guard_against_spurious_io_errors():
                return self._load_overload(signature, context)  # type: ignore[no-untyped-call]

    return Cache
