"""Vectors that are kept beside the parameters, for operations and not for a rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mpidl.rules.rule import Rule
from mpidl.rules.sgd import Sgd


@dataclass(frozen=True)
class Held(Rule):
    """Named vectors, each as long as the parameters; nothing ever updates by it.

    Parameters
    ----------
    states : tuple of str
        Their names.
    """

    name: ClassVar[str] = "held"

    states: tuple[str, ...] = ()  # type: ignore[misc]
    rate: float = 0.0

    def warm(self, dtype: Any) -> None:
        """Compile what adds a multiple of one vector to another."""
        Sgd().warm(dtype)
