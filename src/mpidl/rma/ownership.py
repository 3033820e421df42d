"""Owners of MPI objects, which all ranks free together, once."""

from __future__ import annotations

from typing import Any, NoReturn, Self


class Freed:
    """Takes the place of a freed MPI object: every use raises RuntimeError, and live objects need no check.

    The error has the object's `name`.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def _raise(self, *arguments: Any) -> NoReturn:
        raise RuntimeError(f"{self._name} has been freed")

    __getattr__ = __getitem__ = __iter__ = _raise


class Owner:
    """A context manager that frees what it owns.

    `free` is collective. After an exception nothing is freed: the other ranks may not come to it.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.free()

    def free(self) -> None:
        """Free what this object owns; collective. Every later use raises RuntimeError."""
        raise NotImplementedError
