"""Compilation of loops to machine code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from time import process_time
from typing import Any


@dataclass
class Compilation:
    """The functions of Numba that this process has used so far, counting one for each combination of types.

    Attributes
    ----------
    loaded, saved, lost : int
        Functions from a cache, compiled ones that are in a cache now, and those for which none can be written.
    seconds : float
        Processor time for those that are lost.
    places : set of str
        Directories of the others.
    """

    loaded: int = 0
    saved: int = 0
    lost: int = 0
    seconds: float = 0.0
    places: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        """What is lost, and what helps, as a line."""
        functions = "function" if self.lost == 1 else "functions"
        return (
            f"each start compiles {self.lost} {functions} anew, {self.seconds:.1f} s of processor time: Numba's cache "
            "can't be written; `mpidl doctor --compile` by the owner of the installation fills it for all, or set "
            "NUMBA_CACHE_DIR to a directory that you can write"
        )


COMPILATION = Compilation()


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

    The cache is beside the function's file or, if the package is read-only, in the user's cache directory. What is in a
    read-only one is used. If sums may `reassociate`, they are vectorised. Their order then depends only on the number
    of terms.
    """

    def make() -> Any:
        import numba

        # Without NumPy's error model each division is checked, and loops aren't vectorised. Without fastmath, vector
        # instructions round like the scalar ones for the remainder.
        fast = {"reassoc"} if reassociate else False
        dispatcher: Any = numba.njit(function, error_model="numpy", nogil=True, fastmath=fast)
        with suppress(RuntimeError):  # a function without a file
            dispatcher._cache = _cache()(function)
        return dispatcher

    return Compiled(make)


@cache
def _cache() -> Any:
    """Return the class of a function's cache, which is Numba's, with some differences.

    It loads without the half a second of imports to compile. First, it reads NUMBA_CACHE_DIR, if that is set, or the
    directory beside the function's file: Numba passes over both where it can't write, also if others have filled them.
    """
    from numba.core.caching import FunctionCache
    from numba.core.runtime.nrt import rtsys

    class Readable(FunctionCache._impl_class):  # type: ignore[misc, valid-type]
        _locator_classes = tuple(
            type(each.__name__, (each,), {"ensure_cache_path": lambda self: None})
            for each in FunctionCache._impl_class._locator_classes[:2]
        )

    class Cache(FunctionCache):
        _impl_class = Readable

        @cached_property
        def _written(self) -> Any:
            """Numba's own cache; None if it finds no directory that it can write."""
            with suppress(RuntimeError):
                return FunctionCache(self._py_func)  # type: ignore[no-untyped-call]
            return None

        @property
        def cache_path(self) -> str | None:
            return None if self._written is None else self._written.cache_path

        def _read(self) -> Iterator[Any]:
            yield self
            if self._written is not None:
                yield self._written

        def load_overload(self, signature: Any, context: Any) -> Any:
            rtsys.initialize(context)
            for each in self._read():
                with suppress(OSError):
                    if (found := each._load_overload(signature, context)) is not None:
                        COMPILATION.loaded += 1
                        COMPILATION.places.add(each._cache_path)
                        return found
            self._began = process_time() - COMPILATION.seconds
            return None

        def save_overload(self, signature: Any, data: Any) -> None:
            with suppress(OSError):  # no space, for instance
                if self._written is not None:
                    self._written.save_overload(signature, data)
                    COMPILATION.saved += 1
                    COMPILATION.places.add(self._written.cache_path)
                    return
            COMPILATION.lost += 1
            # Including functions that this one calls, which have just been counted.
            COMPILATION.seconds = process_time() - self._began

    return Cache
