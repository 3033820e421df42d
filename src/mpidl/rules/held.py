"""State vectors that no update rule uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mpidl.rules.rule import Rule
from mpidl.rules.sgd import Sgd


@dataclass(frozen=True)
class Held(Rule):
    """Named vectors, each as long as the parameters. It is never applied.

    Parameters
    ----------
    states : tuple of str
        Names of the vectors.
    """

    name: ClassVar[str] = "held"

    states: tuple[str, ...] = ()  # type: ignore[misc]
    rate: float = 0.0

    def warm(self, dtype: Any) -> None:
        """Compile the addition of a multiple of one vector to another."""
        Sgd().warm(dtype)
