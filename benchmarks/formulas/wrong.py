"""A wrong form."""

from __future__ import annotations

from typing import NamedTuple


class Wrong(NamedTuple):
    """A file of the package, an expression in it, and a wrong one in its place."""

    file: str
    right: str
    wrong: str
